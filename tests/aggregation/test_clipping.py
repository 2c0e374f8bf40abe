"""Clipping bounds the norm of each reply, and is otherwise the aggregation that it wraps."""

from __future__ import annotations

import math

import pytest
import torch
from stacks import EVERY, accumulated, bits
from torch import Tensor

from fedilc.aggregation import Aggregator, Clipped, Mean, WeightedGeometricMean, norm_of
from fedilc.errors import ConfigError, NonFiniteError


def test_the_norm_is_that_of_all_tensors_together_in_float64() -> None:
    tensors = {"a": torch.full((2, 8), 1e30), "b": torch.tensor([-3e30])}
    assert norm_of(tensors) == pytest.approx(5e30, rel=1e-7)
    assert norm_of({"a": torch.tensor([1.0, math.nan])}) == math.inf


@pytest.mark.parametrize("aggregator", EVERY, ids=lambda a: type(a).__name__)
def test_what_is_within_the_bound_is_aggregated_as_without_it(
    aggregator: Aggregator, generator: torch.Generator
) -> None:
    rows = torch.randn(5, 7, generator=generator)
    clipped = Clipped(aggregator, 1e3)
    found, plain = (one.finalize(accumulated(one, rows)) for one in (clipped, aggregator))
    assert bits(found.value["w"]) == bits(plain.value["w"])
    assert found.measurements == plain.measurements
    halves = clipped.merge(accumulated(clipped, rows[:2]), accumulated(clipped, rows[2:]))
    assert bits(clipped.finalize(halves).value["w"]) == bits(plain.value["w"])


@pytest.mark.parametrize("inner", [Mean(), WeightedGeometricMean()], ids=["mean", "geometric"])
def test_what_is_longer_is_scaled_down_over_all_parameters(inner: Aggregator) -> None:
    def aggregate(aggregator: Aggregator, *replies: dict[str, Tensor]) -> dict[str, Tensor]:
        state = aggregator.zero(replies[0])
        for reply in replies:
            aggregator.accumulate(state, reply)
        return aggregator.finalize(state).value

    long = {"w": torch.tensor([30.0, 0.0]), "b": torch.tensor([-40.0])}
    short = {"w": torch.tensor([0.1, 0.2]), "b": torch.tensor([0.3])}
    scaled = {name: tensor * (2.0 / 50.0) for name, tensor in long.items()}
    found = aggregate(Clipped(inner, 2.0), long, short)
    for name, expected in aggregate(inner, scaled, short).items():
        assert torch.equal(found[name], expected)


def test_weights_reach_a_mean_and_are_refused_by_others() -> None:
    rows = torch.tensor([[1.0], [3.0]])
    mean = Clipped(Mean(), 10.0)
    assert float(mean.finalize(accumulated(mean, rows, [3.0, 1.0])).value["w"]) == 1.5
    with pytest.raises(ConfigError, match="takes no weights"):
        accumulated(Clipped(WeightedGeometricMean(), 10.0), rows, [3.0, 1.0])


def test_a_reply_that_is_not_finite_is_named_and_not_scaled() -> None:
    clipped = Clipped(Mean(), 1.0)
    with pytest.raises(NonFiniteError, match="silo 'a'"):
        clipped.accumulate(clipped.zero({"w": torch.zeros(1)}), {"w": torch.tensor([math.inf])}, "silo 'a'")


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_a_bound_that_is_not_positive_is_refused(bound: float) -> None:
    with pytest.raises(ConfigError, match="must be greater than 0"):
        Clipped(Mean(), bound)
