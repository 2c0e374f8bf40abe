"""The weighted geometric mean, stated as five sums.

For values g_1..g_E of one coordinate, with P = {e: g_e > 0} and N = {e: g_e < 0},

    wgm(g) = |P|/E (prod_P |g_e|)^(1/|P|)  -  |N|/E (prod_N |g_e|)^(1/|N|)

is a function of E, |P|, |N|, sum_P log|g| and sum_N log|g|. An empty side contributes 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from fedilc.aggregation.base import Aggregator, Sums, require_finite, wide_dtype
from fedilc.aggregation.outer import outer_sums
from fedilc.errors import ConfigError, nearest

Zeros = Literal["ignore", "strict", "authors"]
AUTHORS_ZERO = 1e-10


class WeightedGeometricMean(Aggregator):
    """Geometric means of the positive and of the negative values, weighted by their shares.

    `zeros` says what a zero is: "ignore", counted in E and in neither product; "strict", a factor
    of both products, so that the coordinate is 0; "authors", a negative value of size 1e-10.
    `agreement` zeroes a coordinate where |mean(sign g)| is below it.
    """

    def __init__(self, zeros: Zeros = "ignore", agreement: float = 0.0) -> None:
        if zeros not in get_args(Zeros):
            raise ConfigError(f"zeros={zeros!r} is unknown{nearest(str(zeros), get_args(Zeros))}")
        if not 0.0 <= agreement <= 1.0:
            raise ConfigError(f"agreement={agreement} is not a share between 0 and 1")
        self.zeros = zeros
        self.agreement = agreement

    def terms(self, values: Tensor) -> dict[str, Tensor]:
        wide = values.to(wide_dtype(values.device))
        positive, negative = values > 0, values < 0
        logs = wide.abs().log()
        return {
            "positives": positive.to(torch.int32),
            "negatives": negative.to(torch.int32),
            "log_positive": logs.where(positive, 0.0),
            "log_negative": logs.where(negative, 0.0),
        }

    def finish(self, count: int, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        log_positive, log_negative = sums["log_positive"], sums["log_negative"]
        positives = sums["positives"].to(log_positive.dtype)
        negatives = sums["negatives"].to(log_positive.dtype)
        agreement = (positives - negatives).abs() / count
        zeros = count - positives - negatives
        if self.zeros == "authors":
            log_negative = log_negative + zeros * math.log(AUTHORS_ZERO)
            negatives = negatives + zeros
        result = _side(positives, log_positive, count) - _side(negatives, log_negative, count)
        if self.zeros == "strict":
            result = result.where(zeros == 0, 0.0)
        if self.agreement > 0:
            result = result.where(agreement >= self.agreement, 0.0)
        return result, {
            "sign_agreement": float(agreement.mean()),
            "zero_share": float((result == 0).double().mean()),
        }

    def add_outer(self, state: Sums, name: str, left: Tensor, right: Tensor) -> None:
        """Add outer products by matrix products alone: log|d a| = log|d| + log|a|."""
        for key, term in outer_sums(left, right).items():
            state.parts[name][key] += term


def _side(members: Tensor, logs: Tensor, count: int) -> Tensor:
    return members / count * torch.exp(logs / members.clamp(min=1))


@torch.no_grad()
def weighted_geometric_mean(
    values: Tensor | Sequence[Tensor],
    dim: int = 0,
    *,
    zeros: Zeros = "ignore",
    agreement: float = 0.0,
) -> Tensor:
    """The weighted geometric mean of `values` along `dim`, in their dtype and on their device.

    Args:
        values: a tensor, or a sequence of equally shaped tensors to be stacked along `dim`.
        dim: the axis that holds the E values.
        zeros: "ignore", "strict" or "authors"; see `WeightedGeometricMean`.
        agreement: zero a coordinate where |mean(sign g)| is below this share (0 is off).

    >>> import torch
    >>> weighted_geometric_mean(torch.tensor([[1.0, 2.0], [4.0, -8.0]]))
    tensor([ 2., -3.])
    """
    stack = _as_stack(values, dim)
    aggregator = WeightedGeometricMean(zeros, agreement)
    for number, value in enumerate(stack):
        require_finite(value, f"value {number} along dim {dim}", "values")
    state = aggregator.zero({"values": stack[0]})
    aggregator.add_stack(state, "values", stack)
    state.count = len(stack)
    result = aggregator.finalize(state).value["values"]
    if stack.dtype == torch.float64 and zeros != "authors":
        limit = stack.abs().amax(0)
        result = result.clamp(-limit, limit)
    return result


def _as_stack(values: Tensor | Sequence[Tensor], dim: int) -> Tensor:
    if not isinstance(values, Tensor):
        tensors = [torch.as_tensor(value) for value in values]
        values = torch.stack(tensors, dim) if tensors else torch.empty(0)
    if values.dim() == 0 or values.shape[dim] == 0:
        raise ConfigError(f"weighted_geometric_mean got no value along dim {dim}; give at least one")
    stack = values
    if not stack.is_floating_point():
        stack = stack.to(torch.get_default_dtype())
    return stack.movedim(dim, 0)
