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

    def finish(self, count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        return sums["total"] / count, {}

    def accumulate(
        self,
        state: Sums,
        values: Mapping[str, Tensor],
        source: str = "a value",
        weight: float | None = None,
    ) -> Sums:
        """Add one reply, in place; with a weight it counts so often, and the mean is over all weights."""
        if weight is None:
            return super().accumulate(state, values, source)
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

    def finish(self, _count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        return sums["total"], {}
