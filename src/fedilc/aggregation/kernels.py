"""The weighted geometric mean of float32 values on the CPU, for about the price of an arithmetic one.

No logarithm is taken per value. A product of five float32 magnitudes lies between 2^-745 and 2^640, so five
values at a time are multiplied in float64; then the exponent is split off by bit operations and added up,
and the mantissa goes on. One logarithm and one exponential a coordinate and side are left for the end, as
polynomials that the compiler turns into SIMD code like everything else here. Coordinates are done in tiles
that stay near the processor, on as many threads as torch uses.

The functions compiled by numba have no type annotations: numba infers their types.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit
from numpy.typing import NDArray

from fedilc.aggregation.few import stacked_few
from fedilc.aggregation.words import (
    AS_DOUBLE,
    AS_DOUBLE_BITS,
    AUTHORS,
    GROUP,
    IGNORE,
    LOWER,
    MANTISSA,
    ONE_BITS,
    OPTIONS,
    STRICT,
    TILE,
    U0,
    U32,
    U52,
    UNSIGNED,
    bits,
    double,
    fit,
    pointer,
    polynomial,
    products,
)

__all__ = ["GROUP", "TILE", "ZEROS", "add_rows", "finish", "stacked", "stacked_few"]

ZEROS = {"ignore": IGNORE, "strict": STRICT, "authors": AUTHORS}

_AUTHORS_LOG2 = float(np.log2(1e-10))
_LN2 = float(np.log(2.0))
_PER_LN2 = float(1 / np.log(2.0))
_SQRT2 = float(np.sqrt(2.0))
_U1, _U1023, _NOT_FINITE = np.uint64(1), np.uint64(1023), np.uint64(2048)
_TO_INTEGER = 1.5 * 2.0**52


def _log2_series(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """log2((1 + s)/(1 - s)) / s as a function of t = s^2."""
    s = np.sqrt(t)
    return 2 * np.arctanh(s) / (s * _LN2)


_LOG2 = fit(_log2_series, 0.0, ((_SQRT2 - 1) / (_SQRT2 + 1)) ** 2, 6)
_EXP2 = fit(np.exp2, -0.5, 0.5, 10)


@njit(**OPTIONS)
def _fold(a, b, c, d, e, state, size):
    """Multiply five rows into a tile and split off exponents; the mark exceeds 2047 after NaN or infinity."""
    mark = U0
    for j in range(size):
        up, down, ups, downs = products(a[j], b[j], c[j], d[j], e[j])
        up_bits, down_bits = bits(up * double(state[j])), bits(down * double(state[TILE + j])) & UNSIGNED
        up_power, down_power = up_bits >> U52, down_bits >> U52
        state[j] = (up_bits & MANTISSA) | ONE_BITS
        state[TILE + j] = (down_bits & MANTISSA) | ONE_BITS
        state[2 * TILE + j] += up_power | (down_power << U32)
        state[3 * TILE + j] += ups | (downs << U32)
        mark |= (up_power + _U1) | (down_power + _U1)
    return mark


@njit(**OPTIONS)
def _fold_tile(rows, steps, start, size, state):
    """Mantissas, exponents and counts of one tile over all rows, which come in whole groups."""
    state[: 2 * TILE] = ONE_BITS
    state[2 * TILE :] = U0
    mark = U0
    for r in range(0, len(rows), GROUP):
        mark |= _fold(
            carray(pointer(rows[r] + start * steps[r]), size),
            carray(pointer(rows[r + 1] + start * steps[r + 1]), size),
            carray(pointer(rows[r + 2] + start * steps[r + 2]), size),
            carray(pointer(rows[r + 3] + start * steps[r + 3]), size),
            carray(pointer(rows[r + 4] + start * steps[r + 4]), size),
            state,
            size,
        )
    return mark


@njit(inline="always", **OPTIONS)
def _low(word):
    """The lower half of a word as float64, by bits: there is no SIMD instruction for it."""
    return double((word & LOWER) | AS_DOUBLE_BITS) - AS_DOUBLE


@njit(inline="always", **OPTIONS)
def _high(word):
    return double((word >> U32) | AS_DOUBLE_BITS) - AS_DOUBLE


@njit(inline="always", **OPTIONS)
def _logs(state, j, bias):
    """log2 of both sides' products, with one division for the two."""
    up, down = double(state[j]), double(state[TILE + j])
    powers = state[2 * TILE + j]
    up_high, down_high = up > _SQRT2, down > _SQRT2
    up, down = up * (0.5 if up_high else 1.0), down * (0.5 if down_high else 1.0)
    inverse = 1.0 / ((up + 1.0) * (down + 1.0))
    s, t = (up - 1.0) * ((down + 1.0) * inverse), (down - 1.0) * ((up + 1.0) * inverse)
    log_up = s * polynomial(_LOG2, s * s) + (_low(powers) - bias + (1.0 if up_high else 0.0))
    log_down = t * polynomial(_LOG2, t * t) + (_high(powers) - bias + (1.0 if down_high else 0.0))
    return log_up, log_down


@njit(inline="always", **OPTIONS)
def _exp2(x):
    """2^x for |x| < 1000."""
    shifted = x + _TO_INTEGER
    fraction = x - (shifted - _TO_INTEGER)
    return double((bits(shifted) + _U1023) << U52) * polynomial(_EXP2, fraction)


@njit(inline="always", **OPTIONS)
def _mean(up, down, log_up, log_down, count, zeros, least):
    """wgm of one coordinate from its five sums, with logarithms to base 2; 0 where |up - down| < least."""
    missing = count - up - down
    low = down + (missing if zeros == AUTHORS else 0.0)
    log_low = log_down + (missing * _AUTHORS_LOG2 if zeros == AUTHORS else 0.0)
    share = 1.0 / count
    up_members, low_members = max(up, 1.0), max(low, 1.0)
    inverse = 1.0 / (up_members * low_members)
    up_side = up * share * _exp2(log_up * (low_members * inverse))
    low_side = low * share * _exp2(log_low * (up_members * inverse))
    hidden = (abs(up - down) < least) | ((zeros == STRICT) & (missing > 0.0))
    return 0.0 if hidden else up_side - low_side


@njit(inline="always", **OPTIONS)
def _margin(members):
    """|up - down| of a word that holds both counts, as a whole number: sums of those vectorise."""
    return abs(np.int64(members & LOWER) - np.int64(members >> U32))


@njit(**OPTIONS)
def _roots(state, size, groups, count, zeros, least, out):
    """The means of one tile; returns the sum over it of |up - down|."""
    agreed = np.int64(0)
    for j in range(size):
        log_up, log_down = _logs(state, j, 1023.0 * groups)
        members = state[3 * TILE + j]
        out[j] = _mean(_low(members), _high(members), log_up, log_down, count, zeros, least)
        agreed += _margin(members)
    return agreed


@njit(
    "Tuple((boolean, int64))(int64, int64, int64[::1], int64[::1], int64, int64, float64, float32[::1])",
    **OPTIONS,
)
def stacked(start, stop, rows, steps, count, zeros, least, out):
    """wgm of `count` rows at coordinates start..stop: whether all values were finite, and sum |up - down|."""
    state = np.empty(4 * TILE, np.uint64)
    mark, agreed = U0, np.int64(0)
    groups = np.float64(len(rows) // GROUP)
    for first in range(start, stop, TILE):
        size = min(TILE, stop - first)
        mark |= _fold_tile(rows, steps, first, size, state)
        place = out[first : first + size]
        agreed += _roots(state, size, groups, np.float64(count), zeros, least, place)
    return mark < _NOT_FINITE, agreed


@njit(**OPTIONS)
def _add_logs(state, size, bias, log_positive, log_negative):
    for j in range(size):
        log_up, log_down = _logs(state, j, bias)
        log_positive[j] += log_up * _LN2
        log_negative[j] += log_down * _LN2


@njit(**OPTIONS)
def _add_counts(state, size, positives, negatives):
    for j in range(size):
        members = state[3 * TILE + j]
        positives[j] += np.int32(members & LOWER)
        negatives[j] += np.int32(members >> U32)


@njit(
    "boolean(int64, int64, int64[::1], int64[::1], int32[::1], int32[::1], float64[::1], float64[::1])",
    **OPTIONS,
)
def add_rows(start, stop, rows, steps, positives, negatives, log_positive, log_negative):
    """Add rows to the five sums at coordinates start..stop; says whether all values were finite."""
    state = np.empty(4 * TILE, np.uint64)
    mark = U0
    bias = 1023.0 * (len(rows) // GROUP)
    for first in range(start, stop, TILE):
        size = min(TILE, stop - first)
        mark |= _fold_tile(rows, steps, first, size, state)
        last = first + size
        _add_logs(state, size, bias, log_positive[first:last], log_negative[first:last])
        _add_counts(state, size, positives[first:last], negatives[first:last])
    return mark < _NOT_FINITE


@njit(**OPTIONS)
def _copy(values, place):
    # A loop, since an assignment of slices takes numba ten times as long to compile.
    for j in range(len(values)):
        place[j] = values[j]


@njit(**OPTIONS)
def _finish_part(positives, negatives, log_positive, log_negative, count, zeros, least, out):
    for j in range(len(out)):
        up, down = np.float64(positives[j]), np.float64(negatives[j])
        log_up, log_down = log_positive[j] * _PER_LN2, log_negative[j] * _PER_LN2
        out[j] = _mean(up, down, log_up, log_down, count, zeros, least)
    agreed = np.int64(0)
    for j in range(len(out)):
        agreed += np.int64(abs(positives[j] - negatives[j]))
    return agreed


@njit(
    "Tuple((boolean, int64))(int64, int64, int64[::1], int64[::1], "
    "int32[::1], int32[::1], float64[::1], float64[::1], int64, int64, float64, float32[::1])",
    **OPTIONS,
)
def finish(
    start, stop, rows, steps, positives, negatives, log_positive, log_negative, count, zeros, least, out
):
    """wgm from five sums and rows not yet in them, which stay as they are; returns what `stacked` does."""
    state = np.empty(4 * TILE, np.uint64)
    up, down = np.empty(TILE, np.int32), np.empty(TILE, np.int32)
    logs_up, logs_down = np.empty(TILE), np.empty(TILE)
    mark, agreed = U0, np.int64(0)
    bias = 1023.0 * (len(rows) // GROUP)
    for first in range(start, stop, TILE):
        size = min(TILE, stop - first)
        _copy(positives[first : first + size], up)
        _copy(negatives[first : first + size], down)
        _copy(log_positive[first : first + size], logs_up)
        _copy(log_negative[first : first + size], logs_down)
        if len(rows):
            mark |= _fold_tile(rows, steps, first, size, state)
            _add_logs(state, size, bias, logs_up, logs_down)
            _add_counts(state, size, up, down)
        place = out[first : first + size]
        agreed += _finish_part(up, down, logs_up, logs_down, np.float64(count), zeros, least, place)
    return mark < _NOT_FINITE, agreed
