"""Rows of floats to be added up, and every aggregator that adds them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from fedilc.aggregation import AGGREGATORS, Aggregator, AndMask, Sum, Sums, WeightedGeometricMean

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EVERY = [
    *(make() for make in AGGREGATORS.values()),
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
