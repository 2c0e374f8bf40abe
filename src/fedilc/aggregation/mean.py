"""The arithmetic mean, and the plain sum."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedilc.aggregation.base import Aggregator


class Mean(Aggregator):
    """The arithmetic mean of the values, each silo or environment one vote unless weights are given.

    The exact total is rounded to float64, divided by the number of values (or by the exact sum of the
    weights, rounded likewise), and rounded to the dtype of the values.
    """

    takes_weights = True

    def terms(self, values: Tensor) -> dict[str, Tensor]:
        """Return the values themselves."""
        return {"total": values}

    def finish(self, count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the total divided by the count."""
        return sums["total"] / count, {}


class Sum(Mean):
    """The sum of the values, as the terms J_e^T v_e of the Fishr gradient need."""

    def finish(self, _count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the total."""
        return sums["total"], {}
