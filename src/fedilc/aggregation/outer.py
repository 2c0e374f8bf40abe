"""The five sums of many outer products, without forming one of them.

For a linear layer the gradient of example i is d_i a_i^T (d: gradient at the output, a: input), so
its logarithm is log|d| + log|a| and its sign is sign(d) sign(a). With D+ = [d > 0], D- = [d < 0],
A+ = [a > 0], A- = [a < 0] as 0/1 matrices,

    |P|       = D+^T A+ + D-^T A-
    sum_P log = (D+ log|d|)^T A+ + D+^T (A+ log|a|) + (D- log|d|)^T A- + D-^T (A- log|a|)

and likewise for N with A+ and A- exchanged: matrix products of the batch, O(parameters) memory.
"""

from __future__ import annotations

import torch
from torch import Tensor


def outer_sums(left: Tensor, right: Tensor) -> dict[str, Tensor]:
    """|P|, |N| and the sums of logarithms over rows i of left_i right_i^T, coordinate by coordinate."""
    d_plus, d_minus = _side(left, left > 0), _side(left, left < 0)
    a_plus = _side(right, right > 0)
    sides = [(d_plus, a_plus, "positive"), (d_minus, a_plus, "negative")]
    if bool((right < 0).any()):
        a_minus = _side(right, right < 0)
        sides += [(d_plus, a_minus, "negative"), (d_minus, a_minus, "positive")]
    sums: dict[str, Tensor] = {}
    for (d, log_d), (a, log_a), sign in sides:
        members = (d.T @ a).round().to(torch.int32)
        logs = (torch.cat([log_d, d]).T @ torch.cat([a, log_a])).double()
        for key, term in ((f"{sign}s", members), (f"log_{sign}", logs)):
            sums[key] = sums[key] + term if key in sums else term
    return sums


def _side(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The 0/1 matrix of one sign, and the logarithms of its members with zeros elsewhere."""
    return mask.to(values.dtype), values.abs().log().where(mask, 0.0)
