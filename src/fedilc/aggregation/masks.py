"""Parascandolo's two proposals, kept for comparison: the AND-mask and the absolute geometric mean."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedilc.aggregation.base import Aggregator, wide_dtype
from fedilc.errors import ConfigError

_ZERO_SIZE = 1e-10


class AndMask(Aggregator):
    """The arithmetic mean where |mean(sign g)| reaches `agreement`, and 0 elsewhere.

    With `rescale` the surviving coordinates of a parameter are divided by their share, which keeps
    the length of the step.
    """

    def __init__(self, agreement: float = 1.0, rescale: bool = True) -> None:
        if not 0.0 <= agreement <= 1.0:
            raise ConfigError(f"agreement={agreement} is not a share between 0 and 1")
        self.agreement = agreement
        self.rescale = rescale

    def terms(self, values: Tensor) -> dict[str, Tensor]:
        wide = values.to(wide_dtype(values.device))
        return {"total": wide, "signs": values.sign().to(torch.int32)}

    def finish(self, count: int, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        total = sums["total"]
        agreement = sums["signs"].to(total.dtype).abs() / count
        kept = (agreement >= self.agreement).to(total.dtype)
        result = total / count * kept
        if self.rescale:
            result = result / kept.mean().clamp(min=_ZERO_SIZE)
        return result, {
            "sign_agreement": float(agreement.mean()),
            "zero_share": float((result == 0).double().mean()),
        }


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

    def finish(self, count: int, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        absent = count - sums["present"].to(sums["log"].dtype)
        logs = sums["log"] + absent * math.log(_ZERO_SIZE)
        result = sums["total"].sign() * torch.exp(logs / count)
        return result, {"zero_share": float((result == 0).double().mean())}
