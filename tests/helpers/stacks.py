"""Rows of floats to be added up, every aggregator that adds them, and both ways to add them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from fedilc.aggregation import (
    AGGREGATORS,
    Aggregator,
    AndMask,
    Sum,
    Sums,
    WeightedGeometricMean,
    _kernels,
)

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EVERY = [
    *(make() for make in map(AGGREGATORS.get, AGGREGATORS.names())),
    Sum(),
    AndMask(agreement=0.5),
    WeightedGeometricMean("strict", 0.3),
    WeightedGeometricMean("authors", min_side=2),
]
TIES = [0.0, -0.0, 1.0, -1.0, 1.5, -1.5, 1e-45, -1e-45, 3e38, -3e38, 1e-40, 6e-8, 65504.0, 2.0**-24]


@st.composite
def stacks(draw: st.DrawFn) -> Tensor:
    """Rows of any float that the dtype has: ties, signed zeros and subnormals among them."""
    dtype = draw(st.sampled_from(DTYPES))
    rows, columns = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    floats = st.one_of(st.sampled_from(TIES), st.floats(allow_nan=False, allow_infinity=False))
    values = draw(st.lists(floats, min_size=rows * columns, max_size=rows * columns))
    limit = torch.finfo(dtype).max
    stack = torch.tensor(values, dtype=torch.float64).clamp(-limit, limit).to(dtype)
    return stack.clamp(-limit, limit).view(rows, columns)


def bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().view(torch.uint8).tolist()


def accumulated(aggregator: Aggregator, rows: Tensor, weights: list[float] | None = None) -> Sums:
    state = aggregator.zero({"w": rows[0]})
    for place, row in enumerate(rows):
        aggregator.accumulate(state, {"w": row}, weight=None if weights is None else weights[place])
    return state


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
