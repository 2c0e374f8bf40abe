"""Metrics and fairness agree with scikit-learn, NumPy and SciPy; a metric that is not defined is None."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy
from sklearn.metrics import (
    accuracy_score,
    auc,
    average_precision_score,
    log_loss,
    precision_recall_curve,
    roc_auc_score,
)
from torch import Tensor

from fedilc.evaluation import fairness, measure, thresholded_areas
from fedilc.gradients import Loss

BINARY, MULTICLASS = Loss("binary"), Loss("multiclass")


def examples(seed: int, classes: int, number: int = 60) -> tuple[Tensor, Tensor]:
    """Labels, and logits that do not predict them; a single logit is in tenths, so that scores tie."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(number, classes))
    if classes == 2:
        logits = logits[:, :1].round(1)
    return torch.from_numpy(logits).float(), torch.from_numpy(random.integers(0, classes, number))


@pytest.mark.parametrize("seed", range(5))
def test_binary_metrics_are_scikit_learns(seed: int) -> None:
    logits, y = examples(seed, 2)
    probability = torch.sigmoid(logits[:, 0].double()).numpy()
    found = measure(BINARY, logits, y.float())
    assert found == {
        "loss": pytest.approx(log_loss(y, probability), rel=1e-6),
        "accuracy": pytest.approx(accuracy_score(y, probability > 0.5)),
        "auroc": pytest.approx(roc_auc_score(y, probability)),
        "auprc": pytest.approx(average_precision_score(y, probability)),
        "examples": 60,
    }


@pytest.mark.parametrize("seed", range(5))
def test_multiclass_metrics_are_scikit_learns_one_against_rest(seed: int) -> None:
    logits, y = examples(seed, 4)
    probabilities = logits.double().softmax(1).numpy()
    one_hot = np.eye(4)[y]
    found = measure(MULTICLASS, logits, y)
    assert found == {
        "loss": pytest.approx(log_loss(y, probabilities), rel=1e-6),
        "accuracy": pytest.approx(accuracy_score(y, probabilities.argmax(1))),
        "auroc": pytest.approx(roc_auc_score(y, probabilities, multi_class="ovr", average="macro")),
        "auprc": pytest.approx(average_precision_score(one_hot, probabilities, average="macro")),
        "examples": 60,
    }


def test_binary_metrics_by_hand() -> None:
    logits, y = torch.tensor([[-2.0], [0.5], [1.0], [3.0]] * 5), torch.tensor([0.0, 1.0, 0.0, 1.0] * 5)
    found = measure(BINARY, logits, y)
    losses = np.log1p(np.exp([-2.0, -0.5, 1.0, -3.0]))
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert found["accuracy"] == 3 / 4
    assert found["auroc"] == 3 / 4
    assert found["auprc"] == pytest.approx((1 / 1 + 2 / 3) / 2)


def test_a_class_that_does_not_occur_counts_in_no_area() -> None:
    logits, y = examples(0, 4)
    y[y == 2] = 1
    probabilities = logits.double().softmax(1).numpy()
    areas = [roc_auc_score(y == c, probabilities[:, c]) for c in (0, 1, 3)]
    assert measure(MULTICLASS, logits, y)["auroc"] == pytest.approx(np.mean(areas))


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("loss", [BINARY, MULTICLASS], ids=["binary", "multiclass"])
def test_a_single_class_has_no_area_but_a_loss_and_an_accuracy(loss: Loss, label: int) -> None:
    logits, _ = examples(0, 2 if loss is BINARY else 3)
    y = torch.full((len(logits),), label)
    found = measure(loss, logits, loss.labels(y, torch.float32))
    predicted = (logits[:, 0] > 0).long() if loss is BINARY else logits.argmax(1)
    assert (found["auroc"], found["auprc"]) == (None, None)
    assert found["accuracy"] == pytest.approx((predicted == label).double().mean().item())
    assert found["loss"] is not None


@pytest.mark.parametrize(("events", "estimable"), [(9, False), (10, True), (50, True), (51, False)])
def test_areas_of_fewer_than_ten_events_or_non_events_are_none(events: int, estimable: bool) -> None:
    logits, _ = examples(0, 2)
    y = (torch.arange(60) < events).float()
    found = measure(BINARY, logits, y)
    assert (found["auroc"] is not None, found["auprc"] is not None) == (estimable, estimable)
    assert found["loss"] is not None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_becomes_none_so_that_it_can_be_written_as_json(bad: float) -> None:
    logits, y = examples(0, 2)
    logits[0], y[0] = bad, 0
    found = measure(BINARY, logits, y.float())
    assert (found["loss"], found["auroc"], found["auprc"]) == (None, None, None)


def test_huge_logits_still_have_a_finite_loss() -> None:
    found = measure(BINARY, torch.tensor([[-1e4], [1e4]]), torch.tensor([1.0, 0.0]))
    assert found["loss"] == pytest.approx(1e4)
    assert found["accuracy"] == 0


def test_confident_multiclass_logits_keep_their_order() -> None:
    logits = torch.tensor([[20.0, 0.0], [25.0, 0.0], [30.0, 0.0], [35.0, 0.0]] * 5)
    found = measure(MULTICLASS, logits, torch.tensor([1, 1, 0, 0] * 5))
    assert (found["auroc"], found["auprc"]) == (1.0, 1.0)


def by_batches(predicted: list[bool], actual: list[bool], batch: int) -> dict[str, float | None]:
    areas: dict[str, list[float]] = {"auroc": [], "auprc": []}
    for start in range(0, len(actual) - batch + 1, batch):
        p = np.array(predicted[start : start + batch], float)
        a = np.array(actual[start : start + batch], float)
        if 0 < a.sum() < batch:
            areas["auroc"].append(roc_auc_score(a, p))
        if a.sum():
            precision, recall, _ = precision_recall_curve(a, p)
            areas["auprc"].append(auc(recall, precision))
    return {key: sum(found) / len(found) if found else None for key, found in areas.items()}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60), st.integers(2, 12))
def test_the_authors_areas_are_those_of_thresholded_predictions_batch_by_batch(
    examples: list[tuple[bool, bool]], batch: int
) -> None:
    predicted, actual = (list(column) for column in zip(*examples, strict=True))
    logits = torch.tensor([[1.5] if p else [-0.5] for p in predicted])
    found = thresholded_areas(logits, torch.tensor(actual).float(), batch)
    for key, expected in by_batches(predicted, actual, batch).items():
        assert found[key] == (None if expected is None else pytest.approx(expected, abs=1e-12))


accuracies = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8)


@given(accuracies)
def test_fairness_is_numpys_variance_and_scipys_entropy(values: list[float]) -> None:
    found = fairness({f"silo-{number}": value for number, value in enumerate(values)})
    uniform = np.full(len(values), 1 / len(values))
    assert found["variance"] == pytest.approx(np.var(values), abs=1e-12)
    assert found["entropy"] == pytest.approx(entropy(values), abs=1e-12)
    assert found["divergence"] == pytest.approx(entropy(values, uniform), abs=1e-12)
    assert found["worst_accuracy"] == min(values)


@pytest.mark.parametrize("silos", [1, 2, 5, 12, 13])
def test_equal_accuracies_are_perfectly_fair_and_never_better(silos: int) -> None:
    found = fairness({f"silo-{number}": 0.7 for number in range(silos)})
    assert found["variance"] == pytest.approx(0)
    assert found["entropy"] == pytest.approx(math.log(silos))
    assert 0 <= found["divergence"] < 1e-12


def test_a_silo_without_any_right_answer_adds_nothing_to_the_entropy() -> None:
    found = fairness({"a": 0.0, "b": 0.5, "c": 0.5})
    assert found["entropy"] == pytest.approx(math.log(2))
    assert (found["worst_silo"], found["worst_accuracy"]) == ("a", 0.0)


def test_silos_that_are_all_wrong_are_even() -> None:
    found = fairness({"a": 0.0, "b": 0.0})
    assert (found["variance"], found["divergence"]) == (0, 0)


def test_the_first_of_several_worst_silos_is_named() -> None:
    assert fairness({"a": 0.9, "b": 0.4, "c": 0.4})["worst_silo"] == "b"
