"""Sums of numbers and of their squares without rounding, so that the order of silos does not matter."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

_MANTISSA_BITS = 53
_LOWEST = 1126
_LOW_BITS = 26
_SPLIT = 2.0**27 + 1


def exact_sum(values: NDArray[np.float64]) -> Fraction:
    """Return the sum of finite numbers without rounding.

    >>> exact_sum(np.array([1e30, 1.0, -1e30]))
    Fraction(1, 1)
    """
    mantissas, exponents = np.frexp(values)
    whole = (mantissas * 2.0**_MANTISSA_BITS).astype(np.int64)
    total = 0
    for exponent in np.unique(exponents):
        part = whole[exponents == exponent]
        high, low = part >> _LOW_BITS, part & ((1 << _LOW_BITS) - 1)
        counted = (int(high.sum()) << _LOW_BITS) + int(low.sum())
        total += counted << (int(exponent) - _MANTISSA_BITS + _LOWEST)
    return Fraction(total, 1 << _LOWEST)


def exact_squares(values: NDArray[np.float64]) -> Fraction:
    """Return the sum of squares without rounding, except for parts below 1e-290.

    >>> exact_squares(np.array([1e8 + 1])) == (10**8 + 1) ** 2
    True
    """
    squares = values * values
    head = _SPLIT * values - (_SPLIT * values - values)
    tail = values - head
    errors = ((head * head - squares) + 2 * head * tail) + tail * tail
    return exact_sum(squares) + exact_sum(errors)
