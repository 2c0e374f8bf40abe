"""The weighted geometric mean, stated as five sums.

For values g_1..g_E of one coordinate, with P = {e: g_e > 0} and N = {e: g_e < 0},

    wgm(g) = |P|/E (prod_P |g_e|)^(1/|P|)  -  |N|/E (prod_N |g_e|)^(1/|N|)

is a function of E, |P|, |N|, sum_P log|g| and sum_N log|g|, all kept as whole numbers: the order of the
values does not matter, and negated values give the negated mean, to the bit. An empty side contributes 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, get_args

import torch
from pydantic import Field
from torch import Tensor

from fedilc.aggregation import _kernels
from fedilc.aggregation.base import Aggregator, Share, measured_signs, not_finite, require_finite
from fedilc.aggregation.packed_sums import Sums
from fedilc.aggregation.signed_logs import LOG2_AUTHORS_ZERO, NARROW, ROOM, SignedLogs, exp2, outer_sums
from fedilc.algorithms.registry import checks_options
from fedilc.errors import ConfigError, NonFiniteError

Zeros = Literal["ignore", "strict", "authors"]
_FEW_TERMS = 64
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_DTYPES = (*_FLOATS, *_WHOLE)


class WeightedGeometricMean(Aggregator):
    """Geometric means of the positive and of the negative values, weighted by their shares.

    Every value is one vote, whatever it stands for: "weighted" refers to the shares of the two signs,
    not to the number of examples behind a value.

    Args:
        zeros: what a zero counts as: "ignore", counted in E but in neither product; "strict", a factor of
            both products, so that the coordinate is 0; "authors", a negative value of size 1e-10.
        agreement: set a coordinate to 0 if |mean(sign g)| is below this share.
        min_side: drop a sign that has fewer members.

    Raises:
        ConfigError: if an argument is out of its range.

    >>> from fedilc import Algorithm
    >>> Algorithm(inter=Geometric(zeros="strict"), penalty="fishr").inter.zeros
    'strict'
    """

    by_sign = True

    @checks_options
    def __init__(
        self,
        zeros: Zeros = "ignore",
        agreement: Share = 0.0,
        min_side: Annotated[int, Field(ge=1)] = 1,
    ) -> None:
        self.zeros = zeros
        self.agreement = agreement
        self.min_side = min_side

    def terms(self, _values: Tensor) -> dict[str, Tensor]:
        """Return no terms: only counts and logarithms by sign are needed."""
        return {}

    def finish(self, count: float, sums: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Compute the mean as the compiled `finish` does, operation by operation, for the same bits."""
        up, down = sums["positives"], sums["negatives"]
        log_up, log_down = sums["log_positive"], sums["log_negative"]
        margin, missing = (up - down).abs(), count - (up + down)
        hidden = margin < self._least(count)
        if self.zeros == "strict":
            hidden |= missing > 0
        if self.zeros == "authors":
            down, log_down = down + missing, log_down + missing * LOG2_AUTHORS_ZERO
        up_members, down_members = up.clamp(min=1.0), down.clamp(min=1.0)
        # One division for both sides, as in the compiled loop: down / (up down) = 1 / up.
        inverse = 1.0 / (up_members * down_members)
        up_share = (up * (1.0 / count)).where(up >= self.min_side, 0.0)
        down_share = (down * (1.0 / count)).where(down >= self.min_side, 0.0)
        up_mean, down_mean = exp2(log_up * (down_members * inverse)), exp2(log_down * (up_members * inverse))
        result = (up_share * up_mean - down_share * down_mean).masked_fill(hidden, 0.0)
        return result, measured_signs(result, float(margin.sum()) / (count * max(1, result.numel())))

    def _finalize_one(self, state: Sums, name: str, count: float) -> tuple[Tensor, dict[str, float]]:
        part = _logs_of(state, name)
        if part.kind != NARROW or not _kernels.usable(part.packed):
            return super()._finalize_one(state, name, count)
        out = torch.empty(part.shape)
        packed = part.packed.numel() and not part.wide.numel()
        kernel, words = ("logs.finish", part.packed) if packed else ("logs.finish_wide", part.wide_words())
        options = self._options(state.count)
        agreed = sum(_kernels.run(kernel, out.numel(), 8, words.numpy(), *options, out.view(-1).numpy()))
        return out, measured_signs(out, agreed / (state.count * max(1, out.numel())))

    def finish_rows(self, state: Sums, name: str, counts: Sequence[int]) -> Tensor:
        """Return the mean of each row of a parameter, to which that row's count of values was added."""
        part = _logs_of(state, name)
        width = part.shape.numel() // len(counts)
        starts = [place for place, count in enumerate(counts) if not place or count != counts[place - 1]]
        stops = [*starts[1:], len(counts)]
        if part.kind != NARROW or not _kernels.usable(part.packed):
            (ups, downs), (log_ups, log_downs) = part.counts_and_logs()
            sums = {"positives": ups, "negatives": downs, "log_positive": log_ups, "log_negative": log_downs}
            found = [
                self.finish(counts[start], {key: of[start:stop] for key, of in sums.items()})[0]
                for start, stop in zip(starts, stops, strict=True)
            ]
            return torch.cat(found).to(state.like[name].dtype)
        out = torch.empty(part.shape)
        packed = part.packed.numel() and not part.wide.numel()
        kernel, words = ("logs.finish", part.packed) if packed else ("logs.finish_wide", part.wide_words())
        for start, stop in zip(starts, stops, strict=True):
            options = self._options(counts[start])
            ranges = [(start * width, stop * width)]
            _kernels.run_ranges(kernel, ranges, 1, words.numpy(), *options, out.view(-1).numpy())
        return out

    def _add_outer(self, state: Sums, name: str, left: Tensor, right: Tensor, source: str) -> None:
        """Add outer products by matrix products alone: log|d a| = log|d| + log|a|."""
        require_finite(left, source, name)
        require_finite(right, source, name)
        _logs_of(state, name).add_sums(*outer_sums(left, right))

    def _add_products(self, state: Sums, name: str, left: Tensor, right: Tensor, source: str) -> None:
        """Add products of few terms without storing any; for many terms a matrix product is faster."""
        part = _logs_of(state, name)
        narrow = left.dtype == right.dtype == part.dtype == torch.float32
        if not (narrow and _kernels.usable(left) and left.shape[1] <= _FEW_TERMS):
            super()._add_products(state, name, left, right, source)
        elif not part.add_products(left, right):
            raise not_finite(source, name)

    def _options(self, count: int) -> tuple[float, int, float, float]:
        """Return the options as arguments of the compiled loops."""
        return float(count), get_args(Zeros).index(self.zeros), self._least(count), float(self.min_side)

    def _least(self, count: float) -> float:
        """Return the least |P - N| for which |P - N| / count >= agreement."""
        # The quotient itself is compared, as users would: agreement * count may be rounded to the other side.
        if not self.agreement:
            return 0.0
        near = max(0, math.floor(self.agreement * count) - 1)
        return float(next(votes for votes in itertools.count(near) if votes / count >= self.agreement))


def _logs_of(state: Sums, name: str) -> SignedLogs:
    (part,) = state.sums[name].values()
    assert isinstance(part, SignedLogs)
    return part


Geometric = WeightedGeometricMean


@torch.no_grad()
def weighted_geometric_mean(
    values: Tensor | Sequence[Tensor],
    dim: int = 0,
    *,
    zeros: Zeros = "ignore",
    agreement: float = 0.0,
    min_side: int = 1,
) -> Tensor:
    """Return the weighted geometric mean of `values` along `dim`, in their dtype and on their device.

    The order of the values does not change a bit of the result, and negated values give the negated result
    (unless zeros="authors"). Logarithms are rounded to 2^-36, so that the result is right to 1e-11 of the
    larger side before it is rounded to float32 or a narrower dtype; those of float64 are rounded to 2^-46,
    for 1e-12.

    Args:
        values: a dense tensor of float16, bfloat16, float32, float64, whole numbers or bools (the last two
            become the default dtype), or a sequence of equally shaped ones to be stacked along `dim`.
            The result is detached: no gradient flows back to values that require one.
        dim: the axis that holds the E values.
        zeros: "ignore", "strict" or "authors"; see `WeightedGeometricMean`.
        agreement: set a coordinate to 0 if |mean(sign g)| is below this share (0 is off).
        min_side: drop a sign with fewer members (1 is off).

    Returns:
        The mean, of the shape of `values` without `dim`.

    Raises:
        ConfigError: if the values are not such a tensor, or an option is out of its range.
        NonFiniteError: if a value is NaN or infinite; the message says which.

    >>> import torch
    >>> weighted_geometric_mean(torch.tensor([[1.0, 2.0], [4.0, -8.0]]))
    tensor([ 2., -3.])
    """
    stack = _as_stack(values, dim)
    aggregator = WeightedGeometricMean(zeros, agreement, min_side)
    if stack.dtype == torch.float32 and _kernels.usable(stack) and len(stack) <= ROOM:
        out = torch.empty(stack.shape[1:])
        rows = stack.detach().reshape(len(stack), out.numel()).contiguous().numpy()
        options = aggregator._options(len(stack))
        done = _kernels.run("logs.stacked", out.numel(), 4 + len(stack), rows, *options, out.view(-1).numpy())
        if all(finite for finite, _ in done):
            return out
    state = aggregator.zero({"values": stack[0]})
    try:
        aggregator._add(state, "values", stack, "a value")
    except NonFiniteError:
        for number, value in enumerate(stack):
            require_finite(value, f"value {number} along dim {dim}", "values")
    state.counted(len(stack))
    result = aggregator.finalize(state).value["values"]
    # A geometric mean does not exceed the largest value, but exp2 of a rounded logarithm may, by some bits.
    if stack.dtype == torch.float64 and zeros != "authors":
        limit = stack.abs().amax(0)
        result = result.clamp(-limit, limit)
    return result


def _as_stack(values: Tensor | Sequence[Tensor], dim: int) -> Tensor:
    """Return the values along the first axis, or raise one sentence that says why they have no mean."""
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
            f"{what} got dim={dim}, but values of shape {tuple(values.shape)} have no such axis"
        )
    if values.shape[dim] == 0:
        raise ConfigError(f"{what} got no value along dim {dim}; give at least one")
    stack = values.movedim(dim, 0)
    return stack if stack.is_floating_point() else stack.to(torch.get_default_dtype())
