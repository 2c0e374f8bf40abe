"""The inconsistency score against its definition, written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from epsilon_sets import epsilon_score
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedilc import Federation, Silo
from fedilc.errors import ConfigError
from fedilc.evaluation.inconsistency import Scores, curvatures, inconsistency

curved = st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3)


@given(st.lists(curved, min_size=1, max_size=4))
def test_it_is_the_largest_ratio_either_way(rows: list[list[float]]) -> None:
    found = inconsistency({str(n): torch.tensor(row, dtype=torch.float64) for n, row in enumerate(rows)})
    for a, one in enumerate(rows):
        for b, other in enumerate(rows):
            ratios = [max(x / y, y / x) for x, y in zip(one, other, strict=True)]
            assert found[str(a), str(b)] == pytest.approx(max(ratios), rel=1e-9)


@given(curved, curved, st.floats(1e-3, 1e3))
def test_it_does_not_depend_on_the_scale_of_both(one: list[float], other: list[float], scale: float) -> None:
    pair = {"a": torch.tensor(one, dtype=torch.float64), "b": torch.tensor(other, dtype=torch.float64)}
    scaled = {name: scale * curvature for name, curvature in pair.items()}
    assert inconsistency(scaled)["a", "b"] == pytest.approx(inconsistency(pair)["a", "b"], rel=1e-9)


def test_a_direction_flat_for_both_is_left_out_and_one_flat_for_one_counts_with_the_floor() -> None:
    flat = {"a": torch.tensor([1.0, 0.0, 0.0]), "b": torch.tensor([1.0, 0.0, 0.5])}
    assert inconsistency({"a": flat["a"][:2], "b": flat["b"][:2]})["a", "b"] == 1.0
    assert inconsistency(flat, floor=1e-3)["a", "b"] == pytest.approx(0.5 / 1e-3, rel=1e-5)


def test_silos_that_are_flat_everywhere_are_consistent() -> None:
    assert inconsistency({"a": torch.zeros(3), "b": torch.zeros(3)})["a", "b"] == 1.0


def test_no_silos_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one silo"):
        inconsistency({})


def test_curvatures_are_the_variances_of_the_classifiers_gradient() -> None:
    x = torch.tensor([[1.0], [2.0], [-1.0]], dtype=torch.float64)
    y = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    model = nn.Linear(1, 1).double()
    found = curvatures(Federation("f", [Silo("a", x, y)]), model)["a"]
    delta = torch.sigmoid(model(x)[:, 0]) - y
    samples = torch.stack([delta * x[:, 0], delta], 1)
    torch.testing.assert_close(found, samples.var(0, correction=0).detach(), rtol=1e-9, atol=0.0)


def test_scores_over_seeds_are_geometric_means() -> None:
    pairs = [{("a", "a"): 1.0, ("a", "b"): s, ("b", "a"): s, ("b", "b"): 1.0} for s in (2.0, 8.0)]
    scores = Scores(dict(enumerate(pairs)))
    assert scores.silos == ["a", "b"]
    assert scores.matrix() == [[1.0, pytest.approx(4.0)], [pytest.approx(4.0), 1.0]]
    assert scores.worst() == [2.0, 8.0]
    assert scores.typical() == [pytest.approx(2.0), pytest.approx(8.0)]
    assert math.isclose(Scores({0: {("a", "a"): 1.0}}).typical()[0], 1.0)


def mean_loss(model: nn.Module, silo: Silo, loss: str) -> torch.Tensor:
    logits = model(silo.x)
    if loss == "binary":
        return functional.binary_cross_entropy_with_logits(logits[:, 0], silo.y.double())
    return functional.cross_entropy(logits, silo.y)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("loss", "outputs"), [("binary", 1), ("multiclass", 4)])
def test_the_hessian_is_autograds_diagonal_over_the_classifier(
    loss: str, outputs: int, bias: bool, generator: torch.Generator
) -> None:
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(0, max(2, outputs), (40,), generator=generator)
    classifier = nn.Linear(5, outputs, bias=bias)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), classifier).double()
    silo = Silo("a", x, y)
    found = curvatures(Federation("f", [silo], loss=loss), model, curvature="hessian")["a"]

    def of(weight: torch.Tensor, *offset: torch.Tensor) -> torch.Tensor:
        named = dict(zip(("2.weight", "2.bias"), (weight, *offset), strict=False))
        return mean_loss(lambda x: torch.func.functional_call(model, named, x), silo, loss)

    parameters = tuple(parameter.detach() for parameter in classifier.parameters())
    hessian = torch.autograd.functional.hessian(of, parameters)
    rows = [
        hessian[n][n].reshape(p.numel(), p.numel()).diagonal().reshape(outputs, -1)
        for n, p in enumerate(parameters)
    ]
    torch.testing.assert_close(found, torch.cat(rows, 1).flatten(), rtol=1e-10, atol=1e-14)


def test_the_hessian_does_not_depend_on_how_examples_are_cut_into_chunks(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    silo = Silo("a", torch.randn(50, 3, generator=generator), torch.arange(50) % 2)
    federation, model = Federation("f", [silo]), nn.Linear(3, 1)
    whole = curvatures(federation, model, curvature="hessian")["a"]
    monkeypatch.setattr("fedilc.gradients.computation.ModelRunner.most_examples", lambda *_: 7)
    torch.testing.assert_close(curvatures(federation, model, curvature="hessian")["a"], whole)


def test_a_curvature_that_is_unknown_is_refused() -> None:
    federation = Federation("f", [Silo("a", torch.ones(2, 1), torch.tensor([0, 1]))])
    with pytest.raises(ConfigError, match="curvature='fisher' is unknown; give one of variance, hessian"):
        curvatures(federation, nn.Linear(1, 1), curvature="fisher")


@pytest.mark.parametrize("epsilon", [0.01, 3.0])
@pytest.mark.parametrize("other", [(1.0, 4.0), (5.0, 2.0), (0.3, 0.5), (1.0, 2.0)])
def test_of_two_parabolas_the_score_is_that_of_the_epsilon_sets(
    other: tuple[float, float], epsilon: float
) -> None:
    one = (1.0, 2.0)
    surfaces = [lambda w, c=curved: 0.5 * (np.array(c) * w**2).sum(-1) for curved in (one, other)]
    reach = [1.1 * math.sqrt(2 * epsilon / min(pair)) for pair in zip(one, other, strict=True)]
    by_definition = epsilon_score(*surfaces, (0.0, 0.0), epsilon, reach)
    formula = inconsistency({"a": torch.tensor(one), "b": torch.tensor(other)})["a", "b"]
    assert by_definition / epsilon == pytest.approx(formula, rel=0.01)


def test_of_two_silos_at_a_common_minimum_the_hessian_gives_the_score_of_small_epsilon_sets() -> None:
    """Each example moves one logit weight, so that the Hessians are diagonal; w is a minimum of both."""
    model = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[math.log(3), 0.0]], dtype=torch.float64))
    silos = []
    for name, second in (("a", 3.0), ("b", 1.2)):
        # 3 of 4 are positive where the model says 0.75, and 1 of 2 where it says 0.5.
        x = torch.tensor([[1.0, 0.0]] * 4 + [[0.0, second]] * 4, dtype=torch.float64)
        silos.append(Silo(name, x, torch.tensor([1, 1, 1, 0, 1, 1, 0, 0])))
    federation = Federation("f", silos)
    for silo in silos:
        gradient = torch.autograd.grad(mean_loss(model, silo, "binary"), model.weight)[0]
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)

    def surface(silo: Silo) -> Callable[[np.ndarray], np.ndarray]:
        x, y = silo.x.numpy(), silo.y.numpy()

        def loss(w: np.ndarray) -> np.ndarray:
            logits = w @ x.T
            return (np.logaddexp(0, logits) - y * logits).mean(-1)

        return loss

    epsilon = 1e-6
    by_definition = epsilon_score(*map(surface, silos), (math.log(3), 0.0), epsilon, (0.006, 0.006))
    scores = {
        curvature: inconsistency(curvatures(federation, model, curvature=curvature))["a", "b"]
        for curvature in ("hessian", "variance")
    }
    assert by_definition / epsilon == pytest.approx((3 / 1.2) ** 2, rel=0.01)
    assert scores["hessian"] == pytest.approx((3 / 1.2) ** 2, rel=1e-9)
    # A calibrated model at a minimum is where C_e is the Hessian, as the paper supposes.
    assert scores["variance"] == pytest.approx(scores["hessian"], rel=1e-9)


def test_where_labels_are_not_as_the_model_says_the_variance_is_not_the_hessian() -> None:
    x = torch.tensor([[1.0], [2.0]] * 4, dtype=torch.float64)
    sure = [Silo(name, x, torch.full((8,), label)) for name, label in (("a", 1), ("b", 0))]
    model = nn.Linear(1, 1).double()
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(1.0)
    federation = Federation("f", sure)
    assert inconsistency(curvatures(federation, model, curvature="hessian"))["a", "b"] == pytest.approx(1.0)
    assert inconsistency(curvatures(federation, model))["a", "b"] > 10
