"""Sums that travelled are the sums that were sent, in no more bytes than their form allows."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stacks import EVERY, TIES, accumulated, bits, stacks
from torch import Tensor

from fedilc.aggregation import Aggregator, Clipped, Mean, Sum, Sums, WeightedGeometricMean, norm_of
from fedilc.aggregation.exact_sum import ExactSum
from fedilc.aggregation.mean import AbsoluteGeometricMean, AndMask
from fedilc.aggregation.packed_sums import PackedSums, SumsForm, add_packed, pack_sums
from fedilc.errors import ProtocolError

CPU = torch.device("cpu")


def norms_of(rows: Tensor) -> list[float]:
    return [norm_of({"w": row}) for row in rows]


def travelled(
    aggregator: Aggregator,
    parts: list[Sums],
    like: Tensor,
    norms: list[float],
    weights: list[float] | None = None,
) -> Sums:
    """A state that was sent all parts, each held to its form."""
    state = aggregator.zero({"w": like})
    form = SumsForm(aggregator, {"w": torch.empty_like(like, device="meta")}, weights is not None)
    for part in parts:
        packed = pack_sums(part, part.count)
        largest = form.tensors(part.count)
        shapes: dict[str, object] = {name: list(tensor.shape) for name, tensor in packed.tensors.items()}
        expected = form.tensors(part.count, form.rows(shapes, packed.lowest))
        assert packed.tensors.keys() == expected.keys() == largest.keys()
        for name, tensor in packed.tensors.items():
            assert (tensor.shape, tensor.dtype) == (expected[name].shape, expected[name].dtype)
            assert tensor.numel() <= largest[name].numel()
        form.check(packed, norms, weights or ())
        add_packed(state, packed, part.count)
        state.counted(part.count)
        state.weighted += part.weighted
        state.weights.add_digits(*part.weights.digits())
    return state


@settings(max_examples=40)
@given(stacks(), st.sampled_from([a for a in EVERY if not a.keeps_values]), st.integers(0, 12))
@example(torch.full((9, 1), 1e-162, dtype=torch.float64), WeightedGeometricMean(), 4)
@example(torch.full((9, 1), 1e-162, dtype=torch.float64), Mean(), 4)
@example(torch.full((9, 1), 1e154, dtype=torch.float64), Mean(), 4)
@example(torch.full((9, 1), 1e308, dtype=torch.float64), Mean(), 4)
@example(torch.full((9, 4), 1e308, dtype=torch.float64), WeightedGeometricMean(), 4)
@example(torch.full((9, 1), 1e-45), WeightedGeometricMean(), 4)
def test_any_split_over_the_wire_gives_the_bits_of_all_values_together(
    rows: Tensor, aggregator: Aggregator, cut: int
) -> None:
    whole = accumulated(aggregator, rows)
    halves = [accumulated(aggregator, part) for part in (rows[:cut], rows[cut:]) if len(part)]
    found = aggregator.finalize(travelled(aggregator, halves, rows[0], norms_of(rows)))
    expected = aggregator.finalize(whole)
    assert bits(found.value["w"]) == bits(expected.value["w"])
    assert found.measurements == expected.measurements


def test_many_parts_leave_the_packed_words_for_wide_ones() -> None:
    rows = torch.randn(300, 5, generator=torch.Generator().manual_seed(2))
    wgm = WeightedGeometricMean()
    parts = [accumulated(wgm, part) for part in rows.split([100, 100, 56, 44])]
    found = wgm.finalize(travelled(wgm, parts, rows[0], norms_of(rows))).value["w"]
    assert bits(found) == bits(wgm.finalize(accumulated(wgm, rows)).value["w"])


@settings(max_examples=40)
@given(stacks(), st.lists(st.floats(1e-300, 1e6), min_size=12, max_size=12))
def test_so_it_does_with_weights(rows: Tensor, weights: list[float]) -> None:
    mean = Clipped(Mean(), 1e300)
    rows, weights = rows.float().nan_to_num(), weights[: len(rows)]
    parts = [accumulated(mean, row.unsqueeze(0), [weight]) for row, weight in zip(rows, weights, strict=True)]
    found = mean.finalize(travelled(mean, parts, rows[0], norms_of(rows), weights)).value["w"]
    assert bits(found) == bits(mean.finalize(accumulated(mean, rows, weights)).value["w"])


@given(st.lists(st.sampled_from([*TIES, 1e308, -1e308, 5e-324]), min_size=1, max_size=40))
def test_digits_are_the_sum_itself(values: list[float]) -> None:
    total = ExactSum(torch.Size([1]), CPU)
    total.add(torch.tensor(values, dtype=torch.float64).view(-1, 1))
    lowest, rows = total.digits()
    digits = [int(row) & 0xFFFFFFFF for row in rows[:-1]] + [int(row) for row in rows[-1:]]
    found = sum(
        Fraction(digit) * Fraction(2) ** (32 * (lowest + place) - 1074) for place, digit in enumerate(digits)
    )
    assert found == sum(map(Fraction, values))


def test_gradients_of_usual_size_take_a_third_of_the_words_that_sums_have_in_memory() -> None:
    rows = 1e-3 * torch.randn(8, 1000, generator=torch.Generator().manual_seed(1))
    for aggregator, most in ((Mean(), 12), (WeightedGeometricMean(), 18)):
        packed = pack_sums(accumulated(aggregator, rows), 8)
        assert sum(t.numel() * t.element_size() for t in packed.tensors.values()) <= most * 1000


FORM = SumsForm(WeightedGeometricMean(), {"w": torch.empty(2, device="meta")}, weighted=False)
FORGED: dict[str, dict[str, list[list[int]]]] = {
    "more members than values": {"counts": [[2, 2], [2, 1]]},
    "logarithms of nothing": {"counts": [[0, 1], [0, 0]], "low": [[1, 0], [0, 0]]},
    "logarithms of larger numbers than there are": {"high": [[129 << 4, 0], [0, 0]]},
    "logarithms of smaller ones": {"high": [[-150 << 4, 0], [0, 0]]},
}


@pytest.mark.parametrize("what", FORGED)
def test_sums_that_no_values_have_are_refused(what: str) -> None:
    usual = {"counts": [[1, 1], [0, 0]], "low": [[0, 0], [0, 0]], "high": [[0, 0], [0, 0]]}
    dtypes = {"counts": torch.uint8, "low": torch.int32, "high": torch.int32}
    tensors = {
        f"w/signs/{key}": torch.tensor(values, dtype=dtypes[key])
        for key, values in (usual | FORGED[what]).items()
    }
    with pytest.raises(ProtocolError, match="w/signs"):
        FORM.check(PackedSums(tensors), [1e38, 1e38, 1e38])


def test_sums_are_no_longer_than_the_norms_that_are_told() -> None:
    rows = torch.tensor([[3.0, 4.0], [30.0, 40.0]])
    for aggregator, reason in ((Mean(), "times as long"), (WeightedGeometricMean(), "outside the range")):
        form = SumsForm(aggregator, {"w": torch.empty(2, device="meta")}, weighted=False)
        packed = pack_sums(accumulated(aggregator, rows), 2)
        form.check(packed, [5.0, 50.0])
        with pytest.raises(ProtocolError, match=reason):
            form.check(packed, [5.0, 5.0])


BOUND = 0.001
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@settings(max_examples=60)
@given(stacks(), st.sampled_from(EVERY), st.sampled_from(DTYPES), st.floats(1e-45, 1e30), st.booleans())
def test_honest_sums_of_clipped_values_are_never_refused(
    rows: Tensor, inner: Aggregator, dtype: torch.dtype, max_norm: float, weighted: bool
) -> None:
    """Whatever rounding does to them, in any dtype."""
    rows = rows.to(dtype).nan_to_num()
    clipped = Clipped(inner, max_norm)
    weights = (
        [10.0 ** (place - 3) for place in range(len(rows))] if weighted and inner.takes_weights else None
    )
    norms = norms_of(rows)
    if math.inf in norms or not len(rows):
        return
    whole = accumulated(clipped, rows, weights) if weights else accumulated(clipped, rows)
    travelled(clipped, [whole], rows[0], norms, weights)


@pytest.mark.parametrize("weights", [None, [10.0, 1000.0]])
@pytest.mark.parametrize(
    "aggregator", [Mean(), Sum(), WeightedGeometricMean(), AndMask(), AbsoluteGeometricMean()]
)
def test_sums_times_90_are_longer_than_clipped_answers_can_be(
    aggregator: Aggregator, weights: list[float] | None
) -> None:
    """Also if the norms that are told are 90 times as large, which no bound on outliers finds."""
    if weights is not None and not aggregator.takes_weights:
        return
    rows = torch.randn(2, 500, generator=torch.Generator().manual_seed(1))
    clipped = Clipped(aggregator, BOUND)
    form = SumsForm(clipped, {"w": torch.empty(500, device="meta")}, weights is not None)
    honest, forged = (
        pack_sums(accumulated(a, rows * f, weights), 2)
        for a, f in ((clipped, 1), (Clipped(aggregator, 90 * BOUND), 90))
    )
    form.check(honest, norms_of(rows), weights or ())
    with pytest.raises(ProtocolError, match=r"outside the range|as long as the norms .* clipped to 0.001"):
        form.check(forged, norms_of(90 * rows), weights or ())


def test_geometric_sums_are_held_to_all_coordinates_together() -> None:
    """Each coordinate alone could be as large as the norm, but not all of them."""
    rows = torch.full((3, 400), 0.05)
    form = SumsForm(WeightedGeometricMean(), {"w": torch.empty(400, device="meta")}, False)
    form.check(pack_sums(accumulated(WeightedGeometricMean(), rows), 3), [1.0] * 3)
    with pytest.raises(ProtocolError, match=r"1\.2 times as long as the norms"):
        form.check(pack_sums(accumulated(WeightedGeometricMean(), 1.2 * rows), 3), [1.0] * 3)


def test_a_mask_counts_each_silo_once() -> None:
    rows = torch.ones(3, 4)
    form = SumsForm(AndMask(), {"w": torch.empty(4, device="meta")}, False)
    with pytest.raises(ProtocolError, match="'w/signs' are larger than those of 2 values"):
        form.check(pack_sums(accumulated(AndMask(), rows), 2), [100.0, 100.0])


@pytest.mark.parametrize(
    ("lowest", "shape"), [(27, [1, 2]), (38, [2, 2]), (30, [2]), (None, [1, 2]), (True, [1, 2])]
)
def test_words_that_no_sum_of_float32_has_are_refused(lowest: object, shape: list[int]) -> None:
    form = SumsForm(Mean(), {"w": torch.empty(2, device="meta")}, weighted=False)
    with pytest.raises(ProtocolError, match="w/total"):
        form.rows({"w/total": shape}, {"w/total": lowest})
