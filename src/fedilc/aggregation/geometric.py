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

from fedilc.aggregation import fast
from fedilc.aggregation.base import Aggregator, Sums, measured_signs, require_finite, require_share
from fedilc.aggregation.outer import outer_sums
from fedilc.errors import ConfigError, nearest
from fedilc.numerics import is_finite, wide_dtype

Zeros = Literal["ignore", "strict", "authors"]
AUTHORS_ZERO = 1e-10
LEAST_HELD, MOST_HELD = 5, 25
HELD_BYTES = 256 << 20
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_DTYPES = (*_FLOATS, *_WHOLE)


class WeightedGeometricMean(Aggregator):
    """Geometric means of the positive and of the negative values, weighted by their shares.

    `zeros` says what a zero is: "ignore", counted in E and in neither product; "strict", a factor
    of both products, so that the coordinate is 0; "authors", a negative value of size 1e-10.
    `agreement` zeroes a coordinate where |mean(sign g)| is below it.

    Every value is one vote, whatever it stands for: "weighted" refers to the shares of the two signs,
    not to the number of examples behind a value.
    """

    def __init__(self, zeros: Zeros = "ignore", agreement: float = 0.0) -> None:
        if zeros not in get_args(Zeros):
            raise ConfigError(f"zeros={zeros!r} is unknown{nearest(str(zeros), get_args(Zeros))}")
        require_share(agreement)
        self.zeros = zeros
        self.agreement = agreement
        fast.prepare()

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

    def finish(self, count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
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
        return result, measured_signs(result, float(agreement.mean()))

    def add_outer(self, state: Sums, name: str, left: Tensor, right: Tensor) -> None:
        """Add outer products by matrix products alone: log|d a| = log|d| + log|a|."""
        for key, term in outer_sums(left, right).items():
            self.part(state, name)[key] += term

    def add_stack(self, state: Sums, name: str, stack: Tensor) -> None:
        if fast.suits(stack) and len(stack):
            fast.add_rows(stack, self.part(state, name))
        else:
            super().add_stack(state, name, stack)

    def add_checked(self, state: Sums, name: str, stack: Tensor, source: str) -> None:
        if not fast.suits(stack) or not len(stack):
            super().add_checked(state, name, stack, source)
        elif not fast.add_rows(stack, self.part(state, name)):
            require_finite(stack, source, name)

    def accumulate(
        self,
        state: Sums,
        values: Mapping[str, Tensor],
        source: str = "a value",
        weight: float | None = None,
    ) -> Sums:
        """Add one reply, which is held as it is and must not be changed until a group is added at once.

        A NaN or an infinity is found by the kernel when its group is added, at the latest by `finalize`.
        """
        if weight is not None or not all(fast.suits(value) for value in values.values()):
            self.settle(state)
            return super().accumulate(state, values, source, weight)
        size = sum(4 * value.numel() for value in values.values())
        groups = HELD_BYTES // max(1, LEAST_HELD * size)
        if len(state.held) >= min(MOST_HELD, LEAST_HELD * max(1, groups)):
            self.settle(state)
        state.held.append((source, dict(values)))
        state.count += 1
        return state

    def settle(self, state: Sums) -> None:
        held, state.held = state.held, []
        for name in state.like if held else ():
            if not fast.add_rows([values[name] for _, values in held], self.part(state, name)):
                _name_culprit(held, name)

    def finalize_one(self, state: Sums, name: str) -> tuple[Tensor, dict[str, float]]:
        """All at once from the replies that are held, if these are all; otherwise from the five sums."""
        if len(state.held) == state.count:
            rows = [values[name] for _, values in state.held]
            result, agreement, finite = fast.stacked(rows, self.zeros, self.agreement)
            if not finite:
                _name_culprit(state.held, name)
            return result.view(state.like[name].shape), measured_signs(result, agreement)
        if not fast.suits(torch.empty(0, dtype=state.like[name].dtype, device=state.devices[name])):
            return super().finalize_one(state, name)
        rows = [values[name] for _, values in state.held]
        sums = self.part(state, name)
        result, agreement, finite = fast.finish(int(state.count), sums, rows, self.zeros, self.agreement)
        if not finite:
            _name_culprit(state.held, name)
        return result, measured_signs(result, agreement)


def _name_culprit(held: list[tuple[str, dict[str, Tensor]]], name: str) -> None:
    for source, values in held:
        require_finite(values[name], source, name)


def _side(members: Tensor, logs: Tensor, count: float) -> Tensor:
    return members / count * torch.exp(logs / members.clamp(min=1))


@torch.no_grad()
def weighted_geometric_mean(
    values: Tensor | Sequence[Tensor],
    dim: int = 0,
    *,
    zeros: Zeros = "ignore",
    agreement: float = 0.0,
) -> Tensor:
    """Return the weighted geometric mean of `values` along `dim`, in their dtype and on their device.

    float32 and narrower dtypes are computed in float64 and rounded once. float64 goes through logarithms of
    its own width, so the result is right to 1e-12 of the larger side, not to the last bit: equal values come
    back to 1e-15 near 1 and to some 1e-13 near 1e-308 and 1e308, and of 2 and -8 it is -2.999999999999999.

    Args:
        values: a dense tensor of float16, bfloat16, float32, float64, whole numbers or bools (the last two
            become the default dtype), or a sequence of equally shaped ones to be stacked along `dim`.
            The result is detached: no gradient flows back to values that require one.
        dim: the axis that holds the E values.
        zeros: "ignore", "strict" or "authors"; see `WeightedGeometricMean`.
        agreement: zero a coordinate where |mean(sign g)| is below this share (0 is off).

    >>> import torch
    >>> weighted_geometric_mean(torch.tensor([[1.0, 2.0], [4.0, -8.0]]))
    tensor([ 2., -3.])
    """
    stack = _as_stack(values, dim)
    aggregator = WeightedGeometricMean(zeros, agreement)
    if fast.suits(stack):
        result, _, finite = fast.stacked(stack, zeros, agreement)
        if finite:
            return result.view(stack.shape[1:])
    if not is_finite(stack):
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
    """Return the values along the first axis, or raise one sentence on why they have no mean."""
    what = "weighted_geometric_mean"
    try:
        if isinstance(values, list | tuple) and values and all(isinstance(v, Tensor) for v in values):
            values = torch.stack(values, dim)
        values = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{what} cannot make one tensor of its values ({reason})") from error
    if values.layout != torch.strided or values.is_nested:
        raise ConfigError(f"{what} needs a dense tensor, not {values.layout}; call .to_dense() first")
    if values.device.type == "meta":
        raise ConfigError(f"{what} got a tensor on the meta device, which holds no values; load it first")
    if values.dtype not in _DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _FLOATS)
        raise ConfigError(f"{what} got {values.dtype}; convert it to one of {known}")
    if not -values.dim() <= dim < values.dim():
        raise ConfigError(
            f"{what} got dim={dim}, and values of shape {tuple(values.shape)} have no such axis"
        )
    if values.shape[dim] == 0:
        raise ConfigError(f"{what} got no value along dim {dim}; give at least one")
    stack = values
    if not stack.is_floating_point():
        stack = stack.to(torch.get_default_dtype())
    return stack.movedim(dim, 0)
