"""The weighted geometric mean of at most five rows, without a logarithm or exponential to full precision.

The product p of a side's k <= 5 members is one float64. Its root starts from a rough z = p^(-1/k), right to
about 1e-4, from float32 polynomials. Then y = p z^(k-1) would be the root if y z = 1 - r were 1, and

    p^(1/k) = y (1 - r)^-a    with a = 1 - 1/k

is a short series in r. Each step is a loop of its own over a tile: short chains of operations keep the
processor's pipelines full. In a tile, a word holds both sides' numbers, the positive one in its lower half.
"""

# mypy: disable-error-code="attr-defined, call-arg, no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np
from numba import carray, njit

from fedilc.aggregation.words import (
    AS_DOUBLE,
    AS_DOUBLE_BITS,
    LOWER,
    OPTIONS,
    STRICT,
    TILE,
    U0,
    U32,
    UNSIGNED,
    UPPER,
    bits,
    bits32,
    double,
    fit,
    pointer,
    polynomial,
    products,
    single,
)

_LOG2 = tuple(np.float32(c) for c in fit(np.log2, 1.0, 2.0, 4))
_EXP2 = tuple(np.float32(c) for c in fit(np.exp2, -0.5, 0.5, 4))
_ONE, _BIAS, _TO_INTEGER = np.float32(1), np.float32(1023), np.float32(1.5 * 2**23)
_ONE_BITS = np.int32(127 << 23)
_TOP_MANTISSA = np.int32((1 << 20) - 1)
_REBIAS = np.int32((1023 - 127) << 20)
_I3, _I20 = np.int32(3), np.int32(20)
_U61, _U62, _U63 = (np.uint64(n) for n in (61, 62, 63))
_POWER = np.uint64(1 << 52)
# A count k is kept as k + 7, so that its three lowest bits are those of k - 1.
_SEVENS, _SEVEN, _SEVEN_AS_DOUBLE = np.uint64(7 | 7 << 32), np.float32(7), AS_DOUBLE + 7
_THIRD = 1 / 3


@njit(**OPTIONS)
def _fold(a, b, c, d, e, up_products, down_products, tops, members):
    """Products, their upper halves and the counts; the mark exceeds `UNSIGNED` after NaN or infinity."""
    mark = U0
    for j in range(len(a)):
        up, down, ups, downs = products(a[j], b[j], c[j], d[j], e[j])
        up_bits, down_bits = bits(up), bits(down) & UNSIGNED
        mark |= (up_bits + _POWER) | (down_bits + _POWER)
        up_products[j], down_products[j] = up, double(down_bits)
        tops[j] = (up_bits >> U32) | (down_bits & UPPER)
        members[j] = (ups | (downs << U32)) + _SEVENS
    return mark


@njit(**OPTIONS)
def _estimate(tops, members):
    """From the upper half of p to that of a rough p^(-1/k), in place."""
    for j in range(len(tops)):
        top = tops[j]
        mantissa = single((top & _TOP_MANTISSA) << _I3 | _ONE_BITS)
        log = polynomial(_LOG2, mantissa) + (np.float32(np.int32(top >> _I20)) - _BIAS)
        x = log * (-_ONE / max(np.float32(members[j]) - _SEVEN, _ONE))
        shifted = x + _TO_INTEGER
        fraction = polynomial(_EXP2, x - (shifted - _TO_INTEGER))
        tops[j] = (bits32(fraction) >> _I3) + _REBIAS + (bits32(shifted) << _I20)


@njit(inline="always", **OPTIONS)
def _side(product, z, word, k, inverse):
    """k p^(1/k) from p, a rough p^(-1/k), the word whose lowest bits are those of k - 1, k and 1/k."""
    square = z * z
    even = square if np.int64(word << _U62) < 0 else 1.0
    even = square * square if np.int64(word << _U61) < 0 else even
    y = product * (even * (z if np.int64(word << _U63) < 0 else 1.0))
    r = 1.0 - y * z
    a = 1.0 - inverse
    series = a * r * (1.0 + (0.5 * a + 0.5) * r * (1.0 + (_THIRD * a + 2 * _THIRD) * r))
    y = y * k
    # The last operation is a sum: a product could be joined to the difference of the sides, on one side only.
    return y + y * series


@njit(**OPTIONS)
def _means(ups, downs, tops, members, count, whole, least, out):
    """The means, 0 where members < whole or |up - down| < least; returns the sum of |up - down|."""
    agreed = U0
    share = 1.0 / count
    for j in range(len(out)):
        word, top = members[j], tops[j]
        up = double((word & LOWER) | AS_DOUBLE_BITS) - _SEVEN_AS_DOUBLE
        down = double((word >> U32) | AS_DOUBLE_BITS) - _SEVEN_AS_DOUBLE
        up_members, down_members = max(up, 1.0), max(down, 1.0)
        inverse = 1.0 / (up_members * down_members)
        up_side = _side(ups[j], double(top << U32), word, up, down_members * inverse)
        down_side = _side(downs[j], double(top & UPPER), word >> U32, down, up_members * inverse)
        margin = abs(up - down)
        out[j] = (up_side - down_side) * (0.0 if (margin < least) | (up + down < whole) else share)
        agreed += bits(margin + AS_DOUBLE)
    return np.int64(agreed - np.uint64(len(out)) * AS_DOUBLE_BITS)


@njit(
    "Tuple((boolean, int64))(int64, int64, int64[::1], int64[::1], int64, int64, float64, float32[::1])",
    **OPTIONS,
)
def stacked_few(start, stop, rows, steps, count, zeros, least, out):
    """As `kernels.stacked` for one group of rows, where zeros are ignored or strict."""
    sides = np.empty(2 * TILE)
    words = np.empty(2 * TILE, np.uint64)
    mark, agreed = U0, np.int64(0)
    whole = np.float64(count if zeros == STRICT else 0)
    for first in range(start, stop, TILE):
        size = min(TILE, stop - first)
        ups, downs, tops, members = sides[:size], sides[size : 2 * size], words[:size], words[size : 2 * size]
        a = carray(pointer(rows[0] + first * steps[0]), size)
        b = carray(pointer(rows[1] + first * steps[1]), size)
        c = carray(pointer(rows[2] + first * steps[2]), size)
        d = carray(pointer(rows[3] + first * steps[3]), size)
        e = carray(pointer(rows[4] + first * steps[4]), size)
        mark |= _fold(a, b, c, d, e, ups, downs, tops, members)
        _estimate(tops.view(np.int32), members.view(np.int32))
        place = out[first : first + size]
        agreed += _means(ups, downs, tops, members, np.float64(count), whole, least, place)
    return mark <= UNSIGNED, agreed
