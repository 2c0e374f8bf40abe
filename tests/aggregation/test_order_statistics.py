"""The trimmed mean and the median: definitions, order, breakdown, and what they refuse."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from fedilc.aggregation import Aggregator, Clipped, KeptValues, Mean, Median, TrimmedMean
from fedilc.errors import ConfigError


def aggregate(rule: Aggregator, values: Sequence[Tensor]) -> Tensor:
    state = rule.zero({"w": values[0]})
    for value in values:
        rule.accumulate(state, {"w": value})
    return rule.finalize(state).value["w"]


def oracle(values: Sequence[float], drop: int) -> float:
    """The mean of the middle values as a fraction, rounded once."""
    middle = sorted(values)[drop : len(values) - drop]
    return float(sum(map(Fraction, middle)) / len(middle))


@pytest.mark.parametrize(
    ("count", "trim", "drop"),
    [
        (1, 0.2, 0),
        (2, 0.4, 0),
        (3, 0.01, 1),
        (4, 0.49, 1),
        (5, 0.2, 1),
        (10, 0.2, 2),
        (10, 0.3, 3),
        (100, 0.29, 29),
    ],
)
def test_the_share_says_how_many_values_go_at_each_end(count: int, trim: float, drop: int) -> None:
    assert TrimmedMean(trim).dropped(count) == drop


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 11])
def test_both_are_means_of_the_middle_values(count: int, generator: torch.Generator) -> None:
    values = [torch.randn(7, generator=generator).double() for _ in range(count)]
    for rule in (TrimmedMean(0.3), Median()):
        found = aggregate(rule, values)
        for i in range(7):
            right = oracle([float(value[i]) for value in values], rule.dropped(count))
            assert float(found[i]) == pytest.approx(right, rel=1e-14)


@pytest.mark.parametrize("rule", [TrimmedMean(), Median()], ids=lambda r: type(r).__name__)
def test_the_order_of_values_changes_no_bit_not_even_the_sign_of_a_zero(rule: Aggregator) -> None:
    values = [torch.tensor([0.1, x]) for x in (-0.0, 0.0, -0.0, 1e30, -1e30)]
    right = aggregate(rule, values).numpy().tobytes()
    for order in itertools.permutations(values):
        assert aggregate(rule, order).numpy().tobytes() == right


@pytest.mark.parametrize("rule", [TrimmedMean(0.4), Median()], ids=lambda r: type(r).__name__)
def test_two_wrong_values_of_five_cannot_leave_the_range_of_the_honest(rule: Aggregator) -> None:
    honest = [torch.tensor([1.0, -2.0]), torch.tensor([2.0, -1.0]), torch.tensor([3.0, 0.0])]
    for wrong in (-1e30, 1e30):
        found = aggregate(rule, [*honest, torch.full((2,), wrong), torch.full((2,), wrong)])
        assert 1.0 <= float(found[0]) <= 3.0
        assert -2.0 <= float(found[1]) <= 0.0
    assert float(aggregate(Mean(), [*honest, torch.full((2,), 1e30)])[0]) > 1e29


def test_values_are_copies_because_a_silo_may_use_its_tensors_again() -> None:
    rule, value = Median(), torch.tensor([1.0])
    state = rule.zero({"w": value})
    rule.accumulate(state, {"w": value})
    value.fill_(9.0)
    assert rule.finalize(state).value["w"] == 1.0


def test_many_coordinates_are_sorted_in_pieces_with_the_same_result(generator: torch.Generator) -> None:
    values = [torch.randn(3, 1 << 19, generator=generator) for _ in range(3)]
    assert torch.equal(aggregate(Median(), values), torch.stack(values).median(0).values)


def test_values_of_other_processes_are_taken_in() -> None:
    rule = Median()
    here, there = rule.zero({"w": torch.zeros(1)}), rule.zero({"w": torch.zeros(1)})
    rule.accumulate(here, {"w": torch.tensor([5.0])})
    assert isinstance(there, KeptValues)
    assert there.stack("w").shape == (0, 1)
    there.exchange(lambda own: torch.cat([here.stack("w"), own]))
    there.counted(1)
    assert rule.finalize(there).value["w"] == 5.0


def test_clipping_works_around_them() -> None:
    rule = Clipped(TrimmedMean(), 1.0)
    assert rule.keeps_values
    found = aggregate(rule, [torch.tensor([10.0]), torch.tensor([5.0]), torch.tensor([0.5])])
    assert float(found) == pytest.approx(1.0)
    left, right = rule.zero({"w": found}), rule.zero({"w": found})
    rule.accumulate(left, {"w": torch.tensor([3.0])})
    rule.accumulate(right, {"w": torch.tensor([0.5])})
    assert float(rule.finalize(rule.merge(left, right)).value["w"]) == pytest.approx(0.75)


@pytest.mark.parametrize("trim", [0.0, 0.5, -1.0, float("nan")])
def test_a_share_that_leaves_nothing_or_drops_nothing_is_refused(trim: float) -> None:
    with pytest.raises(
        ConfigError,
        match=r"trim=.* is not valid: input should be (greater than 0|less than 0\.5|a finite number)",
    ):
        TrimmedMean(trim)
