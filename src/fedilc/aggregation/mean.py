"""The arithmetic mean, and the plain sum."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedilc.aggregation.base import Aggregator, Sums, require_finite
from fedilc.numerics import wide_dtype


class Mean(Aggregator):
    """The arithmetic mean of the values, each silo or environment one vote."""

    def terms(self, values: Tensor) -> dict[str, Tensor]:
        return {"total": values.to(wide_dtype(values.device))}

    def finish(self, count: int, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        return sums["total"] / count, {}

    def accumulate_weighted(
        self, state: Sums, values: Mapping[str, Tensor], weight: int, source: str = "a value"
    ) -> Sums:
        """Add one reply that counts `weight` times, in place: the mean is then over all weights."""
        for name, value in values.items():
            require_finite(value, source, name)
        for name, value in values.items():
            self.part(state, name)["total"] += value.to(wide_dtype(value.device)) * weight
        state.count += weight
        return state

    def add_outer(self, state: Sums, name: str, left: Tensor, right: Tensor) -> None:
        self.part(state, name)["total"] += left.T @ right


class Sum(Mean):
    """The sum of the values, as the terms J_e^T v_e of the Fishr gradient need."""

    def finish(self, _count: int, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        return sums["total"], {}
