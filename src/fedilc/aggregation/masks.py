"""Parascandolo's two proposals, kept for comparison: the AND-mask and the absolute geometric mean."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedilc.aggregation.base import Aggregator, measured_signs, require_share
from fedilc.aggregation.geometric import AUTHORS_ZERO
from fedilc.numerics import wide_dtype


class AndMask(Aggregator):
    """The arithmetic mean where |mean(sign g)| reaches `agreement`, and 0 elsewhere.

    With `rescale` the surviving coordinates of a parameter are divided by their share, which keeps
    the length of the step.
    """

    def __init__(self, agreement: float = 1.0, rescale: bool = True) -> None:
        require_share(agreement)
        self.agreement = agreement
        self.rescale = rescale

    def terms(self, values: Tensor) -> dict[str, Tensor]:
        wide = values.to(wide_dtype(values.device))
        return {"total": wide, "signs": values.sign().to(torch.int32)}

    def finish(self, count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        total = sums["total"]
        agreement = sums["signs"].to(total.dtype).abs() / count
        kept = (agreement >= self.agreement).to(total.dtype)
        result = total / count * kept
        if self.rescale:
            result = result / kept.mean().clamp(min=AUTHORS_ZERO)
        return result, measured_signs(result, float(agreement.mean()))


class AbsoluteGeometricMean(Aggregator):
    """sign(mean g) (prod |g_e|)^(1/E): signs that disagree are overlooked; a zero counts as 1e-10."""

    def terms(self, values: Tensor) -> dict[str, Tensor]:
        wide = values.to(wide_dtype(values.device))
        present = values != 0
        return {
            "total": wide,
            "present": present.to(torch.int32),
            "log": wide.abs().log().where(present, 0.0),
        }

    def finish(self, count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        absent = count - sums["present"].to(sums["log"].dtype)
        logs = sums["log"] + absent * math.log(AUTHORS_ZERO)
        result = sums["total"].sign() * torch.exp(logs / count)
        return result, {}
