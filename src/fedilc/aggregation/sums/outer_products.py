"""The five sums of many outer products, without forming one of them.

For a linear layer the gradient of example i is d_i a_i^T (d: gradient at the output, a: input), so
its logarithm is log|d| + log|a| and its sign is sign(d) sign(a). With D+ = [d > 0], D- = [d < 0],
A+ = [a > 0], A- = [a < 0] as 0/1 matrices,

    |P|       = D+^T A+ + D-^T A-
    sum_P log = (D+ log|d|)^T A+ + D+^T (A+ log|a|) + (D- log|d|)^T A- + D-^T (A- log|a|)

and likewise for N with A+ and A- exchanged: matrix products of the batch, O(parameters) memory. The
products of one sum are joined along the batch. Both counts come from one product: a chunk has fewer than
4096 rows, so |P| + 4096 |N| is a whole number that float32 holds exactly. After ReLU there is no A-. If
there is one, the sums over both signs and their difference, T and Q below, need half as many products.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROWS = 4095


def outer_sums(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return |P| and |N|, and the sums of log2 over P and N, of left_i right_i^T over rows i.

    Exchanging the signs of `left` exchanges P and N to the bit: both sides go through the same products.
    """
    if left.dtype.itemsize < 4:
        left, right = left.float(), right.float()
    add = _signed if bool((right < 0).any()) else _positive
    shape = (2, left.shape[1], right.shape[1])
    counts = torch.zeros(shape, dtype=torch.int64, device=left.device)
    logs = torch.zeros(shape, dtype=torch.float64, device=left.device)
    for d, a in zip(left.split(ROWS), right.split(ROWS), strict=True):
        add(d, a, counts, logs)
    return counts, logs / math.log(2.0)


def _positive(d: Tensor, a: Tensor, counts: Tensor, logs: Tensor) -> None:
    """Add the sums if no input is negative."""
    rows = len(d)
    members, present = d.new_empty(2 * rows, d.shape[1]), a.new_empty(2 * rows, a.shape[1])
    log_d = _masked_log(d)
    torch.gt(a, 0, out=present[:rows])
    present[rows:] = _masked_log(a)
    signs = torch.add((d > 0).to(d.dtype), (d < 0).to(d.dtype), alpha=ROWS + 1)
    _add_counts(signs.T @ present[:rows], counts)
    for side, compare in enumerate((torch.gt, torch.lt)):
        compare(d, 0, out=members[rows:])
        torch.mul(members[rows:], log_d, out=members[:rows])
        logs[side] += members.T @ present


def _signed(d: Tensor, a: Tensor, counts: Tensor, logs: Tensor) -> None:
    """Add the sums in general: T over all non-zero products, Q with their signs; P is half of T + Q."""
    up, down = (d > 0).to(d.dtype), (d < 0).to(d.dtype)
    above, below = (a > 0).to(a.dtype), (a < 0).to(a.dtype)
    log_d, log_a = _masked_log(d), _masked_log(a)
    joined = torch.cat([torch.add(up, down, alpha=ROWS + 1), torch.add(down, up, alpha=ROWS + 1)])
    _add_counts(joined.T @ torch.cat([above, below]), counts)
    present, sign_d, sign_a = up + down, up - down, above - below
    both = torch.cat([log_d, present]).T @ torch.cat([above + below, log_a])
    difference = torch.cat([sign_d * log_d, sign_d]).T @ torch.cat([sign_a, sign_a * log_a])
    t, q = both.double(), difference.double()
    logs[0] += (t + q) / 2
    logs[1] += (t - q) / 2


def _masked_log(values: Tensor) -> Tensor:
    """Return log|v|, and 0 if v is 0; a logarithm of zero itself would take the processor's slow path."""
    size = values.abs()
    return size.add_(size == 0).log_()


def _add_counts(packed: Tensor, counts: Tensor) -> None:
    whole = packed.round().to(torch.int64)
    negatives = whole // (ROWS + 1)
    counts[0] += whole - negatives * (ROWS + 1)
    counts[1] += negatives
