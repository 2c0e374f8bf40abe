"""Round what a silo sends to multiples of a public unit, so that sums are whole numbers in a fixed window.

With the same rounding, a run with secure sums and one without have the same bits. The unit is a power of two:
a multiple of it has no more digits than the number that was rounded, so that every dtype holds it exactly.
Logarithms of the geometric mean are whole numbers of a fixed range already (`aggregation/signed_logs.py`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedilc.aggregation import norm_of
from fedilc.federation.program import CLIPPED, CONTROL, PENALTY, Program
from fedilc.federation.protocol import Answer, Reply

NUMBER_UNIT = 2.0**-40  # of losses and distances; their window is fixed
NUMBER_LIMIT = 2.0**20
ROUNDED_NUMBERS = ("loss", "distance")


def round_reply(reply: Reply, program: Program) -> None:
    """Clip a reply to `max_norm` and round its tensors and numbers; it then counts the values cut off."""
    step, options = program.steps[reply.step], program.options
    assert options.sum_unit is not None
    clipped = 0
    for group, tensors in reply.tensors.items():
        answer = step.answers[group]
        if options.max_norm is not None and group in (program.update, PENALTY, CONTROL):
            norm = norm_of(tensors)
            if options.max_norm < norm < math.inf:
                tensors = {name: tensor * (options.max_norm / norm) for name, tensor in tensors.items()}
        if adds_terms(answer):
            rounded = {name: rounded_to(t, options.sum_unit, options.limit) for name, t in tensors.items()}
            tensors = {name: tensor for name, (tensor, _) in rounded.items()}
            clipped += sum(count for _, count in rounded.values())
        reply.tensors[group] = dict(tensors)
    for name in ROUNDED_NUMBERS:
        number = reply.numbers.get(name)
        if number is not None and math.isfinite(number):
            reply.numbers[name] = rounded_number(number)
    reply.numbers[CLIPPED] = clipped


def adds_terms(answer: Answer) -> bool:
    """Return whether values, and not only their logarithms by sign, are added up."""
    return bool(answer.aggregator.terms(torch.empty(0)))


def rounded_to(values: Tensor, unit: float, limit: float) -> tuple[Tensor, int]:
    """Return values at the nearest multiples of a unit, ties to even, and how many exceeded the limit.

    >>> rounded_to(torch.tensor([0.3, -0.6, 9.0]), 0.25, 4.0)
    (tensor([ 0.2500, -0.5000,  4.0000]), 1)
    """
    wide = values.double()  # scaling by a power of two is exact, and numbers of 2^52 and more are whole
    result = ((wide / unit).round() * unit).clamp(-limit, limit)
    over = int((wide.abs() > limit).sum())
    # NaN and infinities stay, so that they are reported where they are added up.
    return torch.where(wide.isfinite(), result, wide).to(values.dtype), over


def rounded_number(number: float) -> float:
    """Return a loss or a distance as a multiple of 2^-40 within 2^20.

    >>> rounded_number(0.5), rounded_number(1e300) == 2.0**20
    (0.5, True)
    """
    number = max(-NUMBER_LIMIT, min(number, NUMBER_LIMIT))
    return round(number / NUMBER_UNIT) * NUMBER_UNIT
