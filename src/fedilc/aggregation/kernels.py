"""The weighted geometric mean of float32 values on the CPU, for about the price of an arithmetic one.

No logarithm is taken per value. A product of five float32 magnitudes lies between 2^-745 and 2^640, so five
values at a time are multiplied in float64; then the exponent is split off by bit operations and added up,
and the mantissa goes on. One logarithm and one exponential a coordinate and side are left for the end, as
polynomials that the compiler turns into SIMD code like everything else here. Coordinates are done in tiles
that stay in the first-level cache, on as many threads as torch uses.

The functions compiled by numba have no type annotations: numba infers their types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray

GROUP = 5
TILE = 1024
IGNORE, STRICT, AUTHORS = 0, 1, 2
ZEROS = {"ignore": IGNORE, "strict": STRICT, "authors": AUTHORS}

_AUTHORS_LOG2 = float(np.log2(1e-10))
_LN2 = float(np.log(2.0))
_PER_LN2 = float(1 / np.log(2.0))
_SQRT2 = float(np.sqrt(2.0))
_ONE32 = np.int32(0x3F800000)
_SIGN32 = np.int32(-(2**31))
_U0, _U1, _U32, _U52, _U1023 = (np.uint64(n) for n in (0, 1, 32, 52, 1023))
_HALF = np.uint64((1 << 32) - 1)
_MANTISSA = np.uint64((1 << 52) - 1)
_ONE64 = np.uint64(1023 << 52)
_NOT_FINITE = np.uint64(2048)
_TO_DOUBLE_BITS, _TO_DOUBLE = np.uint64(0x4330 << 48), 2.0**52
_TO_INTEGER = 1.5 * 2.0**52
_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"contract"}}

Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def _fit(function: Function, low: float, high: float, degree: int) -> tuple[float, ...]:
    """Coefficients, lowest first, of a near-minimax polynomial."""
    fitted = Chebyshev.interpolate(function, degree, domain=[low, high])
    return tuple(float(c) for c in fitted.convert(kind=Polynomial).coef)


def _log2_series(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """log2((1 + s)/(1 - s)) / s as a function of t = s^2."""
    s = np.sqrt(t)
    return 2 * np.arctanh(s) / (s * _LN2)


_LOG2 = _fit(_log2_series, 0.0, ((_SQRT2 - 1) / (_SQRT2 + 1)) ** 2, 6)
_EXP2 = _fit(np.exp2, -0.5, 0.5, 10)


def _cast(to: Any, source: Any, kind: ir.Type) -> Any:
    """A numba function that reads the bits of one scalar type as another."""

    @intrinsic
    def cast(_: Any, _value: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], kind)

        return to(source), generate

    return cast


_bits = _cast(types.uint64, types.float64, ir.IntType(64))
_double = _cast(types.float64, types.uint64, ir.DoubleType())
_single = _cast(types.float32, types.int32, ir.FloatType())


@intrinsic
def _pointer(_: Any, _address: Any) -> Any:
    """An address as a pointer to the bits of float32 numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int32)(types.int64), generate


@njit(inline="always", **_OPTIONS)
def _magnitude(bits):
    """A positive number in float64; 1 for what belongs to the other side. NaN passes, so that it shows."""
    return np.float64(_single(bits if bits > 0 else _ONE32))


@njit(inline="always", **_OPTIONS)
def _polynomial(coefficients, x):
    total = coefficients[-1]
    for k in range(len(coefficients) - 2, -1, -1):
        total = total * x + coefficients[k]
    return total


@njit(**_OPTIONS)
def _fold(a, b, c, d, e, state, size):
    """Multiply five rows into a tile and split off exponents; the mark exceeds 2047 after NaN or infinity."""
    mark = _U0
    for j in range(size):
        pa, pb, pc, pd, pe = a[j], b[j], c[j], d[j], e[j]
        na, nb, nc, nd, ne = pa ^ _SIGN32, pb ^ _SIGN32, pc ^ _SIGN32, pd ^ _SIGN32, pe ^ _SIGN32
        up = (_double(state[j]) * _magnitude(pa)) * (_magnitude(pb) * _magnitude(pc))
        up = up * (_magnitude(pd) * _magnitude(pe))
        down = (_double(state[TILE + j]) * _magnitude(na)) * (_magnitude(nb) * _magnitude(nc))
        down = down * (_magnitude(nd) * _magnitude(ne))
        ups = np.int32(pa > 0) + np.int32(pb > 0) + np.int32(pc > 0) + np.int32(pd > 0) + np.int32(pe > 0)
        downs = np.int32(na > 0) + np.int32(nb > 0) + np.int32(nc > 0) + np.int32(nd > 0) + np.int32(ne > 0)
        up_bits, down_bits = _bits(up), _bits(down)
        up_power, down_power = up_bits >> _U52, down_bits >> _U52
        state[j] = (up_bits & _MANTISSA) | _ONE64
        state[TILE + j] = (down_bits & _MANTISSA) | _ONE64
        state[2 * TILE + j] += up_power | (down_power << _U32)
        state[3 * TILE + j] += np.uint64(ups) | (np.uint64(downs) << _U32)
        mark |= (up_power + _U1) | (down_power + _U1)
    return mark


@njit(**_OPTIONS)
def _fold_tile(rows, steps, start, size, state):
    """Mantissas, exponents and counts of one tile over all rows, which come in whole groups."""
    state[: 2 * TILE] = _ONE64
    state[2 * TILE :] = _U0
    mark = _U0
    for r in range(0, len(rows), GROUP):
        mark |= _fold(
            carray(_pointer(rows[r] + start * steps[r]), size),
            carray(_pointer(rows[r + 1] + start * steps[r + 1]), size),
            carray(_pointer(rows[r + 2] + start * steps[r + 2]), size),
            carray(_pointer(rows[r + 3] + start * steps[r + 3]), size),
            carray(_pointer(rows[r + 4] + start * steps[r + 4]), size),
            state,
            size,
        )
    return mark


@njit(inline="always", **_OPTIONS)
def _low(word):
    """The lower half of a word as float64, by bits: there is no SIMD instruction for it."""
    return _double((word & _HALF) | _TO_DOUBLE_BITS) - _TO_DOUBLE


@njit(inline="always", **_OPTIONS)
def _high(word):
    return _double((word >> _U32) | _TO_DOUBLE_BITS) - _TO_DOUBLE


@njit(inline="always", **_OPTIONS)
def _logs(state, j, bias):
    """log2 of both sides' products, with one division for the two."""
    up, down = _double(state[j]), _double(state[TILE + j])
    powers = state[2 * TILE + j]
    up_high, down_high = up > _SQRT2, down > _SQRT2
    up, down = up * (0.5 if up_high else 1.0), down * (0.5 if down_high else 1.0)
    inverse = 1.0 / ((up + 1.0) * (down + 1.0))
    s, t = (up - 1.0) * ((down + 1.0) * inverse), (down - 1.0) * ((up + 1.0) * inverse)
    log_up = s * _polynomial(_LOG2, s * s) + (_low(powers) - bias + (1.0 if up_high else 0.0))
    log_down = t * _polynomial(_LOG2, t * t) + (_high(powers) - bias + (1.0 if down_high else 0.0))
    return log_up, log_down


@njit(inline="always", **_OPTIONS)
def _exp2(x):
    """2^x for |x| < 1000."""
    shifted = x + _TO_INTEGER
    fraction = x - (shifted - _TO_INTEGER)
    return _double((_bits(shifted) + _U1023) << _U52) * _polynomial(_EXP2, fraction)


@njit(inline="always", **_OPTIONS)
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


@njit(inline="always", **_OPTIONS)
def _margin(members):
    """|up - down| of a word that holds both counts, as a whole number: sums of those vectorise."""
    return abs(np.int64(members & _HALF) - np.int64(members >> _U32))


@njit(**_OPTIONS)
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
    **_OPTIONS,
)
def stacked(start, stop, rows, steps, count, zeros, least, out):
    """wgm of `count` rows at coordinates start..stop: whether all values were finite, and sum |up - down|."""
    state = np.empty(4 * TILE, np.uint64)
    mark, agreed = _U0, np.int64(0)
    groups = np.float64(len(rows) // GROUP)
    for first in range(start, stop, TILE):
        size = min(TILE, stop - first)
        mark |= _fold_tile(rows, steps, first, size, state)
        place = out[first : first + size]
        agreed += _roots(state, size, groups, np.float64(count), zeros, least, place)
    return mark < _NOT_FINITE, agreed


@njit(**_OPTIONS)
def _add_logs(state, size, bias, log_positive, log_negative):
    for j in range(size):
        log_up, log_down = _logs(state, j, bias)
        log_positive[j] += log_up * _LN2
        log_negative[j] += log_down * _LN2


@njit(**_OPTIONS)
def _add_counts(state, size, positives, negatives):
    for j in range(size):
        members = state[3 * TILE + j]
        positives[j] += np.int32(members & _HALF)
        negatives[j] += np.int32(members >> _U32)


@njit(
    "boolean(int64, int64, int64[::1], int64[::1], int32[::1], int32[::1], float64[::1], float64[::1])",
    **_OPTIONS,
)
def add_rows(start, stop, rows, steps, positives, negatives, log_positive, log_negative):
    """Add rows to the five sums at coordinates start..stop; says whether all values were finite."""
    state = np.empty(4 * TILE, np.uint64)
    mark = _U0
    bias = 1023.0 * (len(rows) // GROUP)
    for first in range(start, stop, TILE):
        size = min(TILE, stop - first)
        mark |= _fold_tile(rows, steps, first, size, state)
        last = first + size
        _add_logs(state, size, bias, log_positive[first:last], log_negative[first:last])
        _add_counts(state, size, positives[first:last], negatives[first:last])
    return mark < _NOT_FINITE


@njit(**_OPTIONS)
def _finish_part(positives, negatives, log_positive, log_negative, count, zeros, least, out):
    for j in range(len(out)):
        up, down = np.float64(positives[j]), np.float64(negatives[j])
        log_up, log_down = log_positive[j] * _PER_LN2, log_negative[j] * _PER_LN2
        out[j] = _mean(up, down, log_up, log_down, count, zeros, least)


@njit(
    "int64(int64, int64, int32[::1], int32[::1], float64[::1], float64[::1], "
    "int64, int64, float64, float32[::1])",
    **_OPTIONS,
)
def finish(start, stop, positives, negatives, log_positive, log_negative, count, zeros, least, out):
    """wgm from five sums at coordinates start..stop; returns sum |up - down|."""
    up, down = positives[start:stop], negatives[start:stop]
    logs_up, logs_down = log_positive[start:stop], log_negative[start:stop]
    _finish_part(up, down, logs_up, logs_down, np.float64(count), zeros, least, out[start:stop])
    agreed = np.int64(0)
    for j in range(len(up)):
        agreed += np.int64(abs(up[j] - down[j]))
    return agreed
