"""A sum of floats is exact, whatever their magnitudes, and its total is rounded once."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from stacks import accumulated, both_ways, every_exponent, stacks
from torch import Tensor

from fedilc.aggregation import Sum
from fedilc.aggregation.exact_sum import ExactSum

CPU = torch.device("cpu")


@given(stacks())
def test_a_sum_is_the_exact_total_rounded_once(stack: Tensor) -> None:
    found = accumulated(Sum(), stack).sums["w"]["total"]
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
