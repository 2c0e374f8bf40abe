"""Metrics agree with scikit-learn and NumPy, and say None where they are not defined."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score
from torch import Tensor

from fedilc.evaluation import measure
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
    logits, y = torch.tensor([[-2.0], [0.5], [1.0], [3.0]]), torch.tensor([0.0, 1.0, 0.0, 1.0])
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
    logits = torch.tensor([[20.0, 0.0], [25.0, 0.0], [30.0, 0.0], [35.0, 0.0]])
    found = measure(MULTICLASS, logits, torch.tensor([1, 1, 0, 0]))
    assert (found["auroc"], found["auprc"]) == (1.0, 1.0)
