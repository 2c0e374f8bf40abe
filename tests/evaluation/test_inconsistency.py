"""The inconsistency score against its definition, written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

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
