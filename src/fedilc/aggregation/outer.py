"""The five sums of many outer products, without forming one of them.

For a linear layer the gradient of example i is d_i a_i^T (d: gradient at the output, a: input), so
its logarithm is log|d| + log|a| and its sign is sign(d) sign(a). With D+ = [d > 0], D- = [d < 0],
A+ = [a > 0], A- = [a < 0] as 0/1 matrices,

    |P|       = D+^T A+ + D-^T A-
    sum_P log = (D+ log|d|)^T A+ + D+^T (A+ log|a|) + (D- log|d|)^T A- + D-^T (A- log|a|)

and likewise for N with A+ and A- exchanged: matrix products of the batch, O(parameters) memory. The
products of one sum are joined along the batch. Both counts come from one product: a chunk has fewer than
4096 rows, so |P| + 4096 |N| is a whole number that float32 holds exactly. After ReLU there is no A-. Where
there is one, the sums over both signs and their difference, T and Q below, need half as many products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedilc.numerics import wide_dtype

ROWS = 4095


def outer_sums(left: Tensor, right: Tensor) -> dict[str, Tensor]:
    """|P|, |N| and the sums of logarithms over rows i of left_i right_i^T, coordinate by coordinate."""
    if left.dtype.itemsize < 4:
        left, right = left.float(), right.float()
    total: dict[str, Tensor] = {}
    signed = bool((right < 0).any())
    for d, a in zip(left.split(ROWS), right.split(ROWS), strict=True):
        for key, term in (_signed(d, a) if signed else _positive(d, a)).items():
            total[key] = total[key] + term if key in total else term
    return total


def _positive(d: Tensor, a: Tensor) -> dict[str, Tensor]:
    """The sums where no input is negative."""
    rows, width = d.shape
    members, present = d.new_empty(2 * rows, 2 * width), a.new_empty(2 * rows, a.shape[1])
    up, down = members[rows:, :width], members[rows:, width:]
    torch.gt(d, 0, out=up)
    torch.lt(d, 0, out=down)
    log_d = _masked_log(d)
    torch.mul(up, log_d, out=members[:rows, :width])
    torch.mul(down, log_d, out=members[:rows, width:])
    torch.gt(a, 0, out=present[:rows])
    present[rows:] = _masked_log(a)
    packed = torch.add(up, down, alpha=ROWS + 1).T @ present[:rows]
    logs = (members.T @ present).to(wide_dtype(d.device))
    return _unpacked(packed) | {"log_positive": logs[:width], "log_negative": logs[width:]}


def _signed(d: Tensor, a: Tensor) -> dict[str, Tensor]:
    """The sums in general: T over all non-zero products, Q with their signs; P is half of T + Q."""
    up, down = (d > 0).to(d.dtype), (d < 0).to(d.dtype)
    above, below = (a > 0).to(a.dtype), (a < 0).to(a.dtype)
    log_d, log_a = _masked_log(d), _masked_log(a)
    joined = torch.cat([torch.add(up, down, alpha=ROWS + 1), torch.add(down, up, alpha=ROWS + 1)])
    packed = joined.T @ torch.cat([above, below])
    present, sign_d, sign_a = up + down, up - down, above - below
    both = torch.cat([log_d, present]).T @ torch.cat([above + below, log_a])
    difference = torch.cat([sign_d * log_d, sign_d]).T @ torch.cat([sign_a, sign_a * log_a])
    t, q = both.to(wide_dtype(d.device)), difference.to(wide_dtype(d.device))
    return _unpacked(packed) | {"log_positive": (t + q) / 2, "log_negative": (t - q) / 2}


def _masked_log(values: Tensor) -> Tensor:
    """log|v|, and 0 where v is 0; a logarithm of zero itself would take the processor's slow path."""
    size = values.abs()
    return size.add_(size == 0).log_()


def _unpacked(packed: Tensor) -> dict[str, Tensor]:
    whole = packed.round().to(torch.int32)
    negatives = whole // (ROWS + 1)
    return {"positives": whole - negatives * (ROWS + 1), "negatives": negatives}
