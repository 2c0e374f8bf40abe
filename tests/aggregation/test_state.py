"""Sums are integers: any order, split and nesting of merges, and any share of ranks, gives the same bits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stacks import EVERY, accumulated, bits, stacks
from torch import Tensor

from fedilc.aggregation import Aggregator, Mean, Sums, WeightedGeometricMean, add_up
from fedilc.aggregation.packed_sums import MOST_VALUES
from fedilc.errors import ConfigError


def merged(aggregator: Aggregator, rows: Tensor, data: st.DataObject) -> Sums:
    """The rows in an order and a nesting of merges that are drawn."""
    order = data.draw(st.permutations(range(len(rows))))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(rows) - 1)), max_size=4)))
    parts = [accumulated(aggregator, rows[list(order[a:b])]) for a, b in spans(cuts, len(rows))]
    while len(parts) > 1:
        place = data.draw(st.integers(0, len(parts) - 2))
        parts[place : place + 2] = [aggregator.merge(parts[place], parts[place + 1])]
    return parts[0]


def spans(cuts: list[int], size: int) -> list[tuple[int, int]]:
    edges = [0, *[cut for cut in cuts if cut < size], size]
    return list(pairwise(edges))


@pytest.mark.parametrize("aggregator", EVERY, ids=lambda a: type(a).__name__)
@settings(max_examples=25)
@given(stacks(), st.data())
def test_any_order_split_and_nesting_gives_the_same_bits(
    aggregator: Aggregator, stack: Tensor, data: st.DataObject
) -> None:
    whole = aggregator.finalize(accumulated(aggregator, stack))
    found = aggregator.finalize(merged(aggregator, stack, data))
    assert bits(found.value["w"]) == bits(whole.value["w"])
    assert found.measurements == whole.measurements or not stack.double().sum(0).isfinite().all()


@given(stacks(), st.data())
def test_a_weighted_mean_does_not_depend_on_the_order(stack: Tensor, data: st.DataObject) -> None:
    stack = stack * 2.0**-30 if stack.dtype == torch.float64 else stack
    weights = data.draw(st.lists(st.floats(1e-3, 1e6), min_size=len(stack), max_size=len(stack)))
    order = data.draw(st.permutations(range(len(stack))))
    cut, mean = data.draw(st.integers(0, len(stack) - 1)), Mean()
    first = accumulated(mean, stack, weights)
    moved, moved_weights = stack[list(order)], [weights[place] for place in order]
    second = mean.merge(
        accumulated(mean, moved[cut:], moved_weights[cut:]),
        accumulated(mean, moved[:cut], moved_weights[:cut]) if cut else mean.zero({"w": stack[0]}),
    )
    assert bits(mean.finalize(first).value["w"]) == bits(mean.finalize(second).value["w"])


def test_a_weighted_mean_is_the_mean_of_exact_products() -> None:
    values, weights = [0.1, 0.2, -0.7], [3, 5, 11]
    state = accumulated(Mean(), torch.tensor(values, dtype=torch.float64).unsqueeze(1), weights)
    total = float(sum(Fraction(value * weight) for value, weight in zip(values, weights, strict=True)))
    assert float(Mean().finalize(state).value["w"]) == total / 19


def test_only_means_take_weights() -> None:
    aggregator = WeightedGeometricMean()
    with pytest.raises(ConfigError, match="counts every value once and takes no weights"):
        aggregator.accumulate(aggregator.zero({"w": torch.ones(1)}), {"w": torch.ones(1)}, weight=2.0)


def test_more_values_than_can_be_counted_are_refused() -> None:
    mean = Mean()
    state = accumulated(mean, torch.ones(1, 2))
    state.counted(MOST_VALUES - 1)
    with pytest.raises(ConfigError, match="at most 2,147,483,647 values"):
        mean.accumulate(state, {"w": torch.ones(2)})
    with pytest.raises(ConfigError, match="at most 2,147,483,647 values"):
        mean.merge(state, accumulated(mean, torch.ones(1, 2)))


class Ranks:
    """All-reduces among threads of this process."""

    def __init__(self, count: int) -> None:
        self.tensors: list[Tensor] = [torch.empty(0)] * count
        self.barrier = threading.Barrier(count)

    def reduce(self, rank: int, tensor: Tensor, how: Callable[[Tensor], Tensor]) -> None:
        self.tensors[rank] = tensor
        self.barrier.wait(60)
        result = how(torch.stack(self.tensors))
        self.barrier.wait(60)
        tensor.copy_(result)


@pytest.mark.parametrize(
    "aggregator", [a for a in EVERY if not a.keeps_values], ids=lambda a: type(a).__name__
)
def test_ranks_add_up_to_the_bits_of_one(aggregator: Aggregator, generator: torch.Generator) -> None:
    rows = torch.randn(7, 50, generator=generator) * 10.0 ** torch.tensor(
        [0, -40, 30, 5, -5, 0, 0]
    ).unsqueeze(1)
    share = [rows[:1], rows[1:4], rows[:0], rows[4:]]
    ranks, found = Ranks(4), dict[int, Tensor]()

    def work(rank: int) -> None:
        state = aggregator.zero({"w": rows[0]})
        for row in share[rank]:
            aggregator.accumulate(state, {"w": row})
        add_up(
            [state],
            lambda tensor: ranks.reduce(rank, tensor, lambda all_: all_.amax(0)),
            lambda tensor: ranks.reduce(rank, tensor, lambda all_: all_.sum(0)),
        )
        found[rank] = aggregator.finalize(state).value["w"]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = aggregator.finalize(accumulated(aggregator, rows)).value["w"]
    assert all(bits(found[rank]) == bits(whole) for rank in range(4))
