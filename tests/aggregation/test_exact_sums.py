"""Sums are integers: any order, split and nesting gives the same bits, and totals are rounded once."""

from __future__ import annotations

import math
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

from fedilc.aggregation import (
    Accumulation,
    Aggregator,
    Mean,
    Sum,
    Sums,
    WeightedGeometricMean,
    _kernels,
    add_up,
    weighted_geometric_mean,
)
from fedilc.aggregation.sums.exact_sum import ExactSum
from fedilc.aggregation.sums.fixed_point import NARROW, WIDE, fixed_log2
from fedilc.aggregation.sums.signed_logs import SignedLogs
from fedilc.aggregation.sums.state import MOST_VALUES
from fedilc.errors import ConfigError

CPU = torch.device("cpu")


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
    with pytest.raises(ConfigError, match="counts every value once, and takes no weights"):
        aggregator.accumulate(aggregator.zero({"w": torch.ones(1)}), {"w": torch.ones(1)}, weight=2.0)


@given(stacks())
def test_a_sum_is_the_exact_total_rounded_once(stack: Tensor) -> None:
    found = accumulated(Sum(), stack).parts["w"]["total"]
    assert isinstance(found, ExactSum)
    for column, total in zip(stack.T, found.total().tolist(), strict=True):
        assert total == rounded(column.tolist())


def rounded(values: list[float]) -> float:
    total = sum((Fraction(value) for value in values), Fraction())
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_large_values_overflow_no_word(dtype: torch.dtype, generator: torch.Generator) -> None:
    limit = torch.finfo(dtype).max / 2**12
    rows = torch.rand(1000, 3, generator=generator, dtype=dtype) * limit
    rows[:, 2] = limit
    total = ExactSum(torch.Size([3]), CPU)
    for part in (rows, rows[:1], -rows[500:], rows, rows):
        assert total.add(part)
    signed = [*rows.tolist() * 3, rows[0].tolist(), *(-rows[500:]).tolist()]
    assert total.total().tolist() == [rounded([row[column] for row in signed]) for column in range(3)]
    assert all(int(word.abs().max()) < 2**63 - 2**32 for word in total.words)


def test_more_values_than_can_be_counted_are_refused() -> None:
    mean = Mean()
    state = accumulated(mean, torch.ones(1, 2))
    state.counted(MOST_VALUES - 1)
    with pytest.raises(ConfigError, match="at most 2,147,483,647 values"):
        mean.accumulate(state, {"w": torch.ones(2)})
    with pytest.raises(ConfigError, match="at most 2,147,483,647 values"):
        mean.merge(state, accumulated(mean, torch.ones(1, 2)))


def every_exponent(generator: torch.Generator) -> Tensor:
    """float32 of all exponents: the least and greatest mantissa of each, and some of the others."""
    mantissas = torch.randint(0, 1 << 23, (255, 200), generator=generator)
    mantissas[:, 0], mantissas[:, 1] = 0, (1 << 23) - 1
    values = (mantissas | torch.arange(255).unsqueeze(1) << 23).to(torch.int32).view(torch.float32).flatten()
    values[::2] *= -1
    return values


def both_ways(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    found = []
    for compiled in (True, False):
        monkeypatch.setattr(_kernels, "usable", lambda _, compiled=compiled: compiled)
        found.append(make())
    return found[0], found[1]


def test_compiled_loops_and_torch_add_the_same_logarithms(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    values = every_exponent(generator)

    def words() -> Tensor:
        logs = SignedLogs(values.shape, torch.float32, CPU)
        assert logs.add(torch.stack([values, values.roll(1), -values]))
        return logs.wide_words()

    assert torch.equal(*both_ways(monkeypatch, words))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_loops_and_torch_add_the_same_values(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    values = every_exponent(generator).to(dtype)
    values = values * values if dtype == torch.float64 else values

    def words() -> Tensor:
        total = ExactSum(values.shape, CPU)
        assert total.add(torch.stack([values, values.roll(1), -values / 3]))
        return total.words

    assert torch.equal(*both_ways(monkeypatch, words))


@pytest.mark.parametrize("zeros", ["ignore", "strict", "authors"])
def test_compiled_loops_and_torch_finish_alike(
    zeros: str, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    values = every_exponent(generator)
    stack = torch.stack([values, values.roll(7), -values.roll(400), values.roll(90_000 % len(values))])
    stack[torch.rand(stack.shape, generator=generator) < 0.1] = 0.0

    def means() -> Tensor:
        return weighted_geometric_mean(stack, zeros=zeros, min_side=2)

    assert torch.equal(*both_ways(monkeypatch, means))


@pytest.mark.parametrize("kind", [NARROW, WIDE], ids=["float32", "float64"])
def test_logarithms_are_right_to_one_unit(kind: object, generator: torch.Generator) -> None:
    mpmath = pytest.importorskip("mpmath")
    values = every_exponent(generator)[::97].double()
    if kind is WIDE:
        values = torch.cat([values, values**7, torch.tensor([5e-324, 1.7e308], dtype=torch.float64)])
        values = values[values.isfinite()]
    values = values[values != 0]
    with mpmath.workdps(40):
        for value, found in zip(values.tolist(), fixed_log2(values, kind).tolist(), strict=True):
            assert abs(mpmath.log(abs(value), 2) * 2**kind.fraction - found) < 0.6


@given(stacks(), st.sampled_from(["ignore", "strict"]))
def test_equal_sides_are_exactly_zero_and_signs_are_exchanged_exactly(stack: Tensor, zeros: str) -> None:
    assert not weighted_geometric_mean(torch.cat([stack, -stack]), zeros=zeros).any()
    negated = weighted_geometric_mean(-stack, zeros=zeros)
    assert torch.equal(negated, -weighted_geometric_mean(stack, zeros=zeros))


def test_a_tie_among_zeros_is_exactly_zero() -> None:
    assert float(weighted_geometric_mean(torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, 0.0]))) == 0.0


@pytest.mark.parametrize("signs", ["both", "positive inputs"])
def test_outer_products_are_odd_to_the_bit(signs: str, generator: torch.Generator) -> None:
    left = torch.randn(300, 37, generator=generator)
    right = torch.randn(300, 29, generator=generator)
    right = right.relu() if signs == "positive inputs" else right
    found = []
    for d in (left, -left):
        aggregator = WeightedGeometricMean()
        sink = Accumulation(aggregator, aggregator.zero({"w": torch.zeros(37, 29)}), "a silo")
        sink.outer("w", d, right)
        sink.counted(300)
        found.append(aggregator.finalize(sink.state).value["w"])
    assert torch.equal(found[0], -found[1])


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


@pytest.mark.parametrize("aggregator", EVERY, ids=lambda a: type(a).__name__)
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
