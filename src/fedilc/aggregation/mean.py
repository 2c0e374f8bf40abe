"""The mean, the sum, and two rules by Parascandolo et al.: AND-mask and absolute geometric mean."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torch import Tensor

from fedilc.aggregation.base import Aggregator, Share, measured_signs
from fedilc.aggregation.signed_logs import AUTHORS_ZERO, LOG2_AUTHORS_ZERO, exp2
from fedilc.algorithms.registry import checks_options


class Mean(Aggregator):
    """The arithmetic mean of the values; each silo or environment is one vote unless weights are given.

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


class AndMask(Aggregator):
    """The arithmetic mean of a coordinate if |mean(sign g)| reaches `agreement`, and 0 if not.

    Args:
        agreement: least absolute mean of the signs of a coordinate.
        rescale: whether the surviving coordinates of a parameter are divided by their share, which keeps the
            length of the step.
    """

    bounded_terms = MappingProxyType({"signs": 1.0})

    @checks_options
    def __init__(self, agreement: Share = 1.0, rescale: bool = True) -> None:
        self.agreement = agreement
        self.rescale = rescale

    def terms(self, values: Tensor) -> dict[str, Tensor]:
        """Return the values and their signs."""
        return {"total": values, "signs": values.sign()}

    def finish(self, count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the mean of the coordinates whose signs agree, and 0 for the others."""
        total = sums["total"]
        agreement = sums["signs"].abs() / count
        kept = agreement >= self.agreement
        result = (total / count).where(kept, 0.0)
        if self.rescale:
            result = result / kept.to(total.dtype).mean().clamp(min=AUTHORS_ZERO)
        return result, measured_signs(result, float(agreement.mean()))


class AbsoluteGeometricMean(Aggregator):
    """sign(mean g) (prod |g_e|)^(1/E): signs that disagree change nothing else; a zero counts as 1e-10."""

    by_sign = True

    def terms(self, values: Tensor) -> dict[str, Tensor]:
        """Return the values, whose total gives the sign."""
        return {"total": values}

    def finish(self, count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the geometric mean of the magnitudes with the sign of the mean."""
        absent = count - (sums["positives"] + sums["negatives"])
        logs = (sums["log_positive"] + sums["log_negative"]) + absent * LOG2_AUTHORS_ZERO
        return sums["total"].sign() * exp2(logs / count), {}
