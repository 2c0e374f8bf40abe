"""A bound on norms around any aggregation."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedilc.aggregation.base import Aggregate, Aggregator, wide_dtype
from fedilc.aggregation.sums.state import Sums
from fedilc.errors import ConfigError


def norm_of(tensors: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm of named tensors together; infinite if they hold a NaN.

    >>> norm_of({"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([-4.0])})
    5.0
    """
    parts = [
        float(torch.linalg.vector_norm(tensor.detach().reshape(-1), dtype=wide_dtype(tensor.device)))
        for tensor in tensors.values()
    ]
    norm = math.hypot(*parts)
    return math.inf if math.isnan(norm) else norm


class Clipped(Aggregator):
    """Scale every value that is longer than `max_norm` down to it before `inner` takes it.

    >>> from fedilc.aggregation import Mean
    >>> clipped = Clipped(Mean(), 1.0)
    >>> state = clipped.accumulate(clipped.zero({"w": torch.zeros(2)}), {"w": torch.tensor([3.0, 4.0])})
    >>> clipped.finalize(state).value["w"]
    tensor([0.6000, 0.8000])
    """

    def __init__(self, inner: Aggregator, max_norm: float) -> None:
        if not max_norm > 0:
            raise ConfigError(f"max_norm={max_norm} must be greater than 0")
        self.inner, self.max_norm = inner, max_norm
        self.takes_weights, self.by_sign = inner.takes_weights, inner.by_sign
        self.keeps_values, self.bounded_terms = inner.keeps_values, inner.bounded_terms

    def terms(self, values: Tensor) -> dict[str, Tensor]:
        """Return the inner aggregation's terms."""
        return self.inner.terms(values)

    def finish(self, count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the inner aggregation's result."""
        return self.inner.finish(count, sums)

    def zero(self, like: Mapping[str, Tensor]) -> Sums:
        """Return the inner aggregation's empty state."""
        return self.inner.zero(like)

    def merge(self, left: Sums, right: Sums) -> Sums:
        """Return the state of both sides' values."""
        return self.inner.merge(left, right)

    def accumulate(
        self,
        state: Sums,
        values: Mapping[str, Tensor],
        source: str = "a value",
        weight: float | None = None,
    ) -> Sums:
        """Add one reply, scaled down to `max_norm` if it is longer."""
        norm = norm_of(values)
        if self.max_norm < norm < math.inf:
            values = {name: tensor * (self.max_norm / norm) for name, tensor in values.items()}
        return self.inner.accumulate(state, values, source, weight)

    def finalize(self, state: Sums) -> Aggregate:
        """Return the inner aggregation's aggregate."""
        return self.inner.finalize(state)
