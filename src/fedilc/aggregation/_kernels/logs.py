"""Compiled loops that add up logarithms by sign, and take the weighted geometric mean from these sums.

`signed_logs.py` explains the packed words. In numpy, this adds a row to the packed words of the positive
values (`ups`; those of the negative values likewise):

    units = np.rint(np.log2(np.abs(row)) * 2**36).astype(np.int64)
    ups += np.where(row > 0, (1 << FIELD) + BIAS + units, 0)

and this is the mean of the positive values, from their number and the sum of their logarithms:

    members = ups >> FIELD
    units = (ups & (1 << FIELD) - 1) - members * BIAS
    mean = 2.0 ** (units / 2**36 / members)

The loops do the same with the logarithm and the power of `signed_logs.py`, in the same order of operations,
so that the bits are those of the plain torch code there.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fedilc.aggregation._kernels import TILE
from fedilc.aggregation._kernels.values import OPTIONS, bits_of, float_of
from fedilc.aggregation.signed_logs import (
    BIAS,
    EXP2,
    FIELD,
    LOG2_AUTHORS_ZERO,
    LOG2_NARROW,
    MANTISSA,
    NARROW,
    ONE_BITS,
    ROUNDER,
    ROUNDER_BITS,
    SQRT2,
)

PART = 512
STRICT, AUTHORS = 1, 2

_FRACTION = NARROW.fraction
_UNIT, _PER_UNIT = 2.0**_FRACTION, 2.0**-_FRACTION
_LOG2 = tuple(c * _UNIT for c in LOG2_NARROW)
_ROUNDER_AND_HALF = ROUNDER + 0.5 * _UNIT
_LOG2_ZERO = LOG2_AUTHORS_ZERO * _UNIT
_UNSIGNED32 = np.int32((1 << 31) - 1)
_INFINITE32 = np.int32(255 << 23)
_EXPONENT = ((1 << 11) - 1) << _FRACTION
_IN_FIELD = (1 << FIELD) - 1
# What turns the biased exponent and the bits of the rounded fraction into a term, in one addition.
_TO_TERM = (1 << FIELD) + BIAS - (1023 << _FRACTION) - ROUNDER_BITS
_DIGIT = (1 << 32) - 1


@njit(inline="always", **OPTIONS)
def _polynomial(coefficients, x):
    total = coefficients[-1]
    for k in range(len(coefficients) - 2, -1, -1):
        total = total * x + coefficients[k]
    return total


@njit(inline="always", **OPTIONS)
def _term(value):
    """Return what a value adds to the packed word of its sign."""
    # No float32 is subnormal as a float64, so the bits of the exponent are the exponent. Adding the rounder
    # leaves the fraction, rounded to whole units, in the lowest bits, because it is below 2^51 in magnitude.
    bits = bits_of(value)
    mantissa = float_of((bits & MANTISSA) | ONE_BITS)
    s = (mantissa - SQRT2) / (mantissa + SQRT2)
    fraction = _polynomial(_LOG2, s * s) * s + _ROUNDER_AND_HALF
    return ((bits >> (52 - _FRACTION)) & _EXPONENT) + _TO_TERM + bits_of(fraction)


@njit(**OPTIONS)
def _add_one(row, ups, downs):
    """Add a row to the packed words of the positive and of the negative values.

    Return the bits of the largest magnitude, which show a NaN or an infinity.
    """
    words = row.view(np.int32)
    largest = np.int32(0)
    for j in range(len(row)):
        largest = max(largest, words[j] & _UNSIGNED32)
        term = _term(row[j])
        ups[j] += term if row[j] > 0 else 0
        downs[j] += term if row[j] < 0 else 0
    return largest


@njit(**OPTIONS)
def _add_two(row, other, ups, downs):
    """Add two rows at once, which takes a fifth less: packed words are read and written half as often."""
    words, others = row.view(np.int32), other.view(np.int32)
    largest = np.int32(0)
    for j in range(len(row)):
        largest = max(largest, max(words[j] & _UNSIGNED32, others[j] & _UNSIGNED32))
        one, two = _term(row[j]), _term(other[j])
        ups[j] += (one if row[j] > 0 else 0) + (two if other[j] > 0 else 0)
        downs[j] += (one if row[j] < 0 else 0) + (two if other[j] < 0 else 0)
    return largest


@njit(**OPTIONS)
def _add_all(stack, first, last, ups, downs):
    """Add all rows at columns first..last to one tile of packed words; return what `_add_one` returns."""
    largest = np.int32(0)
    for r in range(0, len(stack) - 1, 2):
        largest = max(largest, _add_two(stack[r, first:last], stack[r + 1, first:last], ups, downs))
    if len(stack) % 2:
        largest = max(largest, _add_one(stack[len(stack) - 1, first:last], ups, downs))
    return largest


@njit("boolean(int64, int64, float32[:, ::1], int64[::1], int64[:, ::1])", **OPTIONS)
def add_logs(start, stop, stack, offsets, packed):
    """Add rows at columns start..stop to packed words; return whether all are finite.

    If there are offsets, row r begins at coordinate offsets[r]; otherwise all rows begin at the first.
    """
    largest = np.int32(0)
    for r in range(len(offsets)):
        a, b = offsets[r] + start, offsets[r] + stop
        largest = max(largest, _add_one(stack[r, start:stop], packed[0, a:b], packed[1, a:b]))
    for first in range(start, stop if len(offsets) == 0 else start, TILE):
        last = min(first + TILE, stop)
        largest = max(largest, _add_all(stack, first, last, packed[0, first:last], packed[1, first:last]))
    return largest < _INFINITE32


@njit(inline="always", **OPTIONS)
def _factors(left, i, row, stop):
    """Return four rows of `left` from i on, at one column; what is outside is 0."""
    inside = row < stop
    return (
        left[i, row] if inside else np.float32(0),
        left[i + 1, row] if inside & (i + 1 < len(left)) else np.float32(0),
        left[i + 2, row] if inside & (i + 2 < len(left)) else np.float32(0),
        left[i + 3, row] if inside & (i + 3 < len(left)) else np.float32(0),
    )


# `contract` fuses products and additions: these are products of matrices, whose last bits depend on the
# processor in torch too, and no sum that must be the same everywhere.
@njit(fastmath={"contract"}, **OPTIONS)
def _four_rows(left, right, row, stop, first, last, sums):
    """Write rows row..row + 3 of left^T right, columns first..last, to `sums`; rows from `stop` on are 0.

    Terms are added one by one, in their order. The four parts of `sums` are at fixed distances, so that the
    compiler knows that they do not overlap and adds as many columns at once as the processor can.
    """
    one, two, three, four = sums[:PART], sums[PART : 2 * PART], sums[2 * PART : 3 * PART], sums[3 * PART :]
    sums[:] = 0
    end = len(left) - 1
    # Past the end, `min` reads the last row again with factors of 0: it counts once. (If it is infinite,
    # 0 times it is NaN, and the product is refused, as it would be for that row itself.)
    for i in range(0, len(left), 4):
        a0, b0, c0, d0 = _factors(left, i, row, stop)
        a1, b1, c1, d1 = _factors(left, i, row + 1, stop)
        a2, b2, c2, d2 = _factors(left, i, row + 2, stop)
        a3, b3, c3, d3 = _factors(left, i, row + 3, stop)
        ra, rb = right[i, first:last], right[min(i + 1, end), first:last]
        rc, rd = right[min(i + 2, end), first:last], right[min(i + 3, end), first:last]
        for j in range(last - first):
            a, b, c, d = ra[j], rb[j], rc[j], rd[j]
            one[j] = one[j] + a0 * a + b0 * b + c0 * c + d0 * d
            two[j] = two[j] + a1 * a + b1 * b + c1 * c + d1 * d
            three[j] = three[j] + a2 * a + b2 * b + c2 * c + d2 * d
            four[j] = four[j] + a3 * a + b3 * b + c3 * c + d3 * d


@njit("boolean(int64, int64, float32[:, :, :], float32[:, :, ::1], int64[:, ::1])", **OPTIONS)
def add_products(start, stop, left, right, packed):
    """Add rows start..stop of left_e^T right_e, for each e, to packed words; return whether all are finite.

    Four rows of two of these products are formed in the nearest cache and added, and never stored.
    """
    width = right.shape[2]
    sums = np.empty((2, 4 * PART), np.float32)
    largest = np.int32(0)
    for e in range(0, len(left), 2):
        both = min(2, len(left) - e)
        for row in range(start, stop, 4):
            for first in range(0, width, PART):
                last = min(first + PART, width)
                for k in range(both):
                    _four_rows(left[e + k], right[e + k], row, stop, first, last, sums[k])
                for r in range(min(4, stop - row)):
                    a, b = r * PART, r * PART + last - first
                    ups = packed[0, (row + r) * width + first : (row + r) * width + last]
                    downs = packed[1, (row + r) * width + first : (row + r) * width + last]
                    if both == 2:
                        largest = max(largest, _add_two(sums[0, a:b], sums[1, a:b], ups, downs))
                    else:
                        largest = max(largest, _add_one(sums[0, a:b], ups, downs))
    return largest < _INFINITE32


@njit("void(int64, int64, int64[:, ::1], int64[:, :, ::1])", **OPTIONS)
def spill(start, stop, packed, wide):
    """Move packed words at columns start..stop into wide ones."""
    for side in range(2):
        words, counts = packed[side, start:stop], wide[0, side, start:stop]
        lows, highs = wide[1, side, start:stop], wide[2, side, start:stop]
        for j in range(len(words)):
            members = words[j] >> FIELD
            low = lows[j] + (words[j] & _IN_FIELD) - members * BIAS
            counts[j] += members
            lows[j] = low & _DIGIT
            highs[j] += low >> 32
            words[j] = 0


@njit(inline="always", **OPTIONS)
def _exp2(x):
    # The lowest bits of `shifted` are x rounded to a whole number; those of the rounder leave at the top. A
    # mean of logarithms of float32 is between -149 and 128, so that the power is a normal number.
    shifted = x + ROUNDER
    part = x - (shifted - ROUNDER)
    return (_polynomial(EXP2, part) * part + 1.0) * float_of((bits_of(shifted) + 1023) << 52)


@njit(inline="always", **OPTIONS)
def _mean(up, down, log_up, log_down, count, zeros, least, min_side):
    """Return wgm of one coordinate from its sums, step by step as `WeightedGeometricMean.finish`."""
    missing = count - (up + down)
    hidden = (abs(up - down) < least) | ((zeros == STRICT) & (missing > 0.0))
    if zeros == AUTHORS:
        down += missing
        log_down += missing * _LOG2_ZERO
    up_members, down_members = max(up, 1.0), max(down, 1.0)
    # One division for both sides: down / (up down) = 1 / up.
    inverse = _PER_UNIT / (up_members * down_members)
    up_mean = _exp2(log_up * (down_members * inverse))
    down_mean = _exp2(log_down * (up_members * inverse))
    share = 1.0 / count
    up_share = up * share if up >= min_side else 0.0
    down_share = down * share if down >= min_side else 0.0
    return 0.0 if hidden else up_share * up_mean - down_share * down_mean


@njit("int64(int64, int64, int64[:, ::1], float64, int64, float64, float64, float32[::1])", **OPTIONS)
def finish(start, stop, packed, count, zeros, least, min_side, out):
    """Write wgm of columns start..stop from packed words; return the sum of |up - down|.

    float64 holds the sums of packed words exactly.
    """
    agreed = np.int64(0)
    ups, downs, part = packed[0, start:stop], packed[1, start:stop], out[start:stop]
    for j in range(len(part)):
        up, down = np.float64(ups[j] >> FIELD), np.float64(downs[j] >> FIELD)
        log_up = np.float64(ups[j] & _IN_FIELD) - up * BIAS
        log_down = np.float64(downs[j] & _IN_FIELD) - down * BIAS
        agreed += abs((ups[j] >> FIELD) - (downs[j] >> FIELD))
        part[j] = _mean(up, down, log_up, log_down, count, zeros, least, min_side)
    return agreed


@njit("int64(int64, int64, int64[:, :, ::1], float64, int64, float64, float64, float32[::1])", **OPTIONS)
def finish_wide(start, stop, wide, count, zeros, least, min_side, out):
    """Write wgm of columns start..stop from wide words; return the sum of |up - down|."""
    agreed = np.int64(0)
    ups, downs, part = wide[0, 0, start:stop], wide[0, 1, start:stop], out[start:stop]
    low_ups, low_downs = wide[1, 0, start:stop], wide[1, 1, start:stop]
    high_ups, high_downs = wide[2, 0, start:stop], wide[2, 1, start:stop]
    for j in range(len(part)):
        up, down = np.float64(ups[j]), np.float64(downs[j])
        # Both words are exact in float64, so that their sum is the only rounding.
        log_up = np.float64(high_ups[j]) * 2.0**32 + np.float64(low_ups[j])
        log_down = np.float64(high_downs[j]) * 2.0**32 + np.float64(low_downs[j])
        agreed += abs(ups[j] - downs[j])
        part[j] = _mean(up, down, log_up, log_down, count, zeros, least, min_side)
    return agreed


@njit(
    "Tuple((boolean, int64))(int64, int64, float32[:, ::1], float64, int64, float64, float64, float32[::1])",
    **OPTIONS,
)
def stacked(start, stop, stack, count, zeros, least, min_side, out):
    """Write wgm of up to 255 rows at columns start..stop; return whether all are finite, and |up - down|."""
    packed = np.empty((2, TILE), np.int64)
    largest, agreed = np.int32(0), np.int64(0)
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        packed[:] = 0
        size = last - first
        largest = max(largest, _add_all(stack, first, last, packed[0, :size], packed[1, :size]))
        agreed += finish(0, size, packed, count, zeros, least, min_side, out[first:last])
    return largest < _INFINITE32, agreed
