"""The compiled loops: sizes around tiles and words, threads, and what they do not take."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedilc.aggregation import (
    AGGREGATORS,
    Accumulation,
    WeightedGeometricMean,
    _kernels,
    weighted_geometric_mean,
)
from fedilc.aggregation.signed_logs import NARROW, ROOM, SignedLogs
from fedilc.errors import NonFiniteError


def plain(stack: torch.Tensor, **options: object) -> torch.Tensor:
    """The same through float64 torch, which the kernels never take."""
    return weighted_geometric_mean(stack.double(), **options).float()


@pytest.mark.parametrize("size", [1, 7, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("rows", [1, 4, 5, 6, 23])
def test_any_number_of_rows_and_coordinates_equals_plain_torch(
    rows: int, size: int, generator: torch.Generator
) -> None:
    stack = torch.randn(rows, size, generator=generator)
    stack[torch.rand(stack.shape, generator=generator) < 0.05] = 0.0
    for zeros in ("ignore", "strict", "authors"):
        torch.testing.assert_close(
            weighted_geometric_mean(stack, zeros=zeros), plain(stack, zeros=zeros), rtol=2e-7, atol=1e-12
        )


@pytest.mark.parametrize("rows", [3, 10, 49, 100])
@pytest.mark.parametrize("agreement", [0.1, 0.3, 0.6, 0.98, 1.0])
def test_the_mask_is_the_same_to_the_last_vote(
    rows: int, agreement: float, generator: torch.Generator
) -> None:
    stack = torch.randn(rows, 500, generator=generator) + 1.0
    stack[:, 0] = 1.0
    found = weighted_geometric_mean(stack, agreement=agreement)
    assert torch.equal(found == 0, plain(stack, agreement=agreement) == 0)
    assert found[0] == 1.0


def test_the_number_of_threads_does_not_change_a_bit(generator: torch.Generator) -> None:
    stack = torch.randn(9, 200_001, generator=generator)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(weighted_geometric_mean(stack))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def voted(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The words of the weighted geometric mean of products, none of which is formed if loops are compiled."""
    aggregator = WeightedGeometricMean()
    sink = Accumulation(aggregator, aggregator.zero({"w": left[0].T @ right[0]}), "a silo")
    sink.products("w", left, right)
    return sink.state.sums["w"]["signs"].wide_words()


@given(
    environments=st.sampled_from([1, 2, 3, ROOM, ROOM + 1, 2 * ROOM + 3]),
    terms=st.integers(1, 9),
    rows=st.integers(1, 5),
    width=st.sampled_from([1, 2, 15, 16, 17, 40]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40)
def test_votes_of_products_are_those_of_the_products_to_the_bit(
    environments: int, terms: int, rows: int, width: int, seed: int
) -> None:
    """Whole numbers, which are exact in whatever order they are added; a third of the factors is 0."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randint(-1, 2, (environments, terms, rows), generator=generator).float()
    right = torch.randint(-9, 10, (environments, terms, width), generator=generator).float()
    logs = SignedLogs(torch.Size((rows, width)), torch.float32, torch.device("cpu"))
    assert logs.add(left.transpose(1, 2) @ right)
    assert torch.equal(voted(left, right), logs.wide_words())


def test_votes_of_products_are_right_in_float64_odd_and_the_same_on_any_number_of_threads(
    generator: torch.Generator,
) -> None:
    if not _kernels.usable(torch.empty(0)):
        pytest.skip("plain torch leaves the order of a matrix product to the library behind it")
    left = torch.rand(31, 32, 70, generator=generator) + 0.1
    left[torch.rand(left.shape, generator=generator) < 0.5] = 0.0
    right = torch.rand(31, 32, 91, generator=generator) + 0.1
    exact = SignedLogs(torch.Size((70, 91)), torch.float64, torch.device("cpu"))
    exact.add(left.double().transpose(1, 2) @ right.double())
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(voted(left, right))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[0], voted(-left, right).flip(1))
    units = 2.0**32 * found[0][2, 0].double() + found[0][1, 0]
    _, (logs, _) = exact.counts_and_logs()
    torch.testing.assert_close(units * 2.0**-NARROW.fraction, logs.flatten(), rtol=0, atol=31 * 1e-6)


def test_factors_may_be_views_of_something_larger(generator: torch.Generator) -> None:
    left, right = torch.randn(3, 4, 5, generator=generator), torch.randn(3, 4, 6, generator=generator)
    padded = torch.nn.functional.pad(left, (0, 3))[:, :, :5]
    strided = right.repeat_interleave(2, 2)[:, :, ::2]
    assert torch.equal(voted(padded, strided), voted(left, right))


@pytest.mark.parametrize("replies", [1, ROOM - 1, ROOM, ROOM + 1, 3 * ROOM + 2])
def test_a_stream_longer_than_a_word_has_room_for_equals_the_stack(
    replies: int, generator: torch.Generator
) -> None:
    stack = torch.randn(replies, 4, 30, generator=generator)
    aggregator = WeightedGeometricMean()
    state = aggregator.zero({"w": stack[0]})
    for value in stack:
        aggregator.accumulate(state, {"w": value})
    found = aggregator.finalize(state)
    assert torch.equal(found.value["w"], weighted_geometric_mean(stack))
    share = float(stack.sign().mean(0).abs().mean())
    assert found.measurements["sign_agreement"]["w"] == pytest.approx(share, rel=1e-6)


def test_finalizing_twice_gives_the_same(generator: torch.Generator) -> None:
    stack = torch.randn(ROOM + 3, 70, generator=generator)
    aggregator = WeightedGeometricMean()
    state = aggregator.zero({"w": stack[0]})
    for value in stack:
        aggregator.accumulate(state, {"w": value})
    first, second = aggregator.finalize(state), aggregator.finalize(state)
    assert torch.equal(first.value["w"], second.value["w"])
    assert first.measurements == second.measurements


def test_a_reply_may_change_once_it_was_added(generator: torch.Generator) -> None:
    stack = torch.randn(3, 70, generator=generator)
    aggregator, buffer = WeightedGeometricMean(), torch.empty(70)
    state = aggregator.zero({"w": buffer})
    for value in stack:
        aggregator.accumulate(state, {"w": buffer.copy_(value)})
    assert torch.equal(aggregator.finalize(state).value["w"], weighted_geometric_mean(stack))


def test_the_silo_with_an_infinity_is_named_when_it_is_added() -> None:
    aggregator = WeightedGeometricMean()
    state = aggregator.zero({"w": torch.zeros(30)})
    aggregator.accumulate(state, {"w": torch.ones(30)}, "silo 'a'")
    with pytest.raises(NonFiniteError, match="silo 'b'"):
        aggregator.accumulate(state, {"w": torch.full((30,), torch.inf)}, "silo 'b'")


def test_no_aggregator_starts_a_thread() -> None:
    before = set(threading.enumerate())
    for make in map(AGGREGATORS.get, AGGREGATORS.names()):
        make()
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("pairs", [1, 2])
def test_opposite_values_cancel_to_nothing(pairs: int, generator: torch.Generator) -> None:
    values = torch.randn(pairs, 5000, generator=generator)
    assert not weighted_geometric_mean(torch.cat([values, -values])).any()


@pytest.mark.parametrize("rows", [2, 3, 4, 5])
def test_sides_that_nearly_cancel_keep_what_is_left(rows: int, generator: torch.Generator) -> None:
    stack = torch.rand(rows, 5000, generator=generator) * 1e-5 + 1.0
    stack[rows // 2 :] *= -1
    stack *= 10 ** (torch.rand(5000, generator=generator) * 60 - 30)
    wide = stack.double().abs()
    up, down = wide[: rows // 2], wide[rows // 2 :]
    expected = (len(up) * up.prod(0) ** (1 / len(up)) - len(down) * down.prod(0) ** (1 / len(down))) / rows
    found = weighted_geometric_mean(stack).double()
    assert bool(((found - expected).abs() <= 1e-7 * expected.abs() + 2.0**-36 * wide.amax(0)).all())


def test_strided_values_are_taken(generator: torch.Generator) -> None:
    stack = torch.randn(6, 40, 30, generator=generator)
    assert torch.equal(weighted_geometric_mean(stack.transpose(1, 2)), weighted_geometric_mean(stack).T)


@pytest.mark.parametrize("place", [0, 5, 4999])
@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_found_wherever_it_is(bad: float, place: int) -> None:
    stack = torch.ones(7, 5000)
    stack[3, place] = bad
    with pytest.raises(NonFiniteError, match="value 3"):
        weighted_geometric_mean(stack)
