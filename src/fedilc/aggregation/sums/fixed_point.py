"""Logarithms as whole numbers: log2|g| is rounded once to a multiple of 2^-36 (float64: 2^-46).

A float64 is 2^e m with 1 <= m < 2, so log2 of it is e + log2(m), and log2(m) is a short series. It is
evaluated by operations that are rounded one by one (never fused), with constants that are written out here:
the whole numbers are the same from the compiled loops, from torch, and on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# log2(m) = 1/2 + s (c0 + c1 s^2 + ...) with s = (m - sqrt(2)) / (m + sqrt(2)), to 2^-39 and to 2^-54.
SQRT2 = 1.4142135623730951
LOG2_NARROW = (
    *(2.885390081845375, 0.9617966483151706, 0.5770866440297666, 0.4115342202931814),
    0.34282038053773556,
)
LOG2_WIDE = (
    *(2.8853900817779308, 0.9617966939212171, 0.5770780180945378, 0.4121983031658162),
    *(0.3206219907532385, 0.2612918979788246, 0.24450933764884192),
)
# 2^x = 1 + x (c0 + c1 x + ...) for |x| <= 1/2, to 2^-44.
EXP2 = (
    *(0.6931471805599471, 0.24022650695812972, 0.05550410866454283, 0.00961812915940738),
    *(0.0013333558222563817, 0.00015403455848569218, 1.5252658992120359e-05, 1.3255225771811078e-06),
    1.0208692030634509e-07,
)
AUTHORS_ZERO, LOG2_AUTHORS_ZERO = 1e-10, -33.219280948873624
# Adding this to |x| < 2^51 rounds x to a whole number, which is then in the lowest bits.
ROUNDER, ROUNDER_BITS = 1.5 * 2.0**52, 0x4338 << 48
MANTISSA, ONE_BITS = (1 << 52) - 1, 1023 << 52


# A packed word holds up to ROOM logarithms in units of 2^-36 and how many they are: a sum of terms
# (1 << FIELD) + BIAS + log2|g| 2^36. The bias makes a term positive, so that the lowest FIELD bits hold the
# sum of logarithms and the bits above them the count: for float32, -149 <= log2|g| < 128, so that
# 255 terms are below 255 (150 + 128) 2^36 < 2^53, and the count of at most 255 fits into the 10 bits above.
ROOM, FIELD, BIAS = 255, 53, 150 << 36


@dataclass(frozen=True)
class FixedPoint:
    """How many bits logarithms have after the point, and the series for log2(m)."""

    fraction: int
    series: tuple[float, ...]


NARROW, WIDE = FixedPoint(36, LOG2_NARROW), FixedPoint(46, LOG2_WIDE)


def fixed_log2(values: Tensor, kind: FixedPoint) -> Tensor:
    """Return log2|v| in units of 2^-fraction, as int64; for 0 it is some whole number.

    >>> fixed_log2(torch.tensor([1.0, -0.25]), NARROW).tolist() == [0, -2 << 36]
    True
    """
    size = values.double().abs()
    tiny = size < 2.0**-1022
    size = torch.where(tiny, size * 2.0**54, size)
    bits = size.view(torch.int64)
    mantissa = (bits & MANTISSA | ONE_BITS).view(torch.float64)
    s = (mantissa - SQRT2) / (mantissa + SQRT2)
    fraction = _polynomial(kind.series, s * s) * s * 2.0**kind.fraction
    units = (fraction + (ROUNDER + 2.0 ** (kind.fraction - 1))).view(torch.int64) - ROUNDER_BITS
    exponent = (bits >> 52) - torch.where(tiny, 1023 + 54, 1023)
    return (exponent << kind.fraction) + units


def exp2(x: Tensor) -> Tensor:
    """Return 2^x of float64 numbers with -1100 < x <= 1024; what overflows is the largest float64."""
    whole = (x + ROUNDER) - ROUNDER
    part = x - whole
    value = _polynomial(EXP2, part) * part + 1.0
    exponent = whole.to(torch.int64)
    half = exponent >> 1
    for power in (half, exponent - half):
        value = value * ((power + 1023) << 52).view(torch.float64)
    return value.clamp(max=torch.finfo(torch.float64).max)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    total = torch.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total
