"""Compiled loops that add up values without rounding (`exact_sum.py` explains the words), and what all share.

Functions have no type annotations: numba infers their types.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fedilc.aggregation._kernels import TILE
from fedilc.aggregation.signed_logs import MANTISSA

OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}
_UNSIGNED = (1 << 63) - 1
_NOTHING = np.int64(_UNSIGNED)
_DIGIT = (1 << 32) - 1
_LOW = (1 << 29) - 1


@njit(inline="always", **OPTIONS)
def bits_of(value):
    """Return the bits of a float64: sign, 11 bits of exponent, 52 of mantissa."""
    return np.float64(value).view(np.int64)


@njit(inline="always", **OPTIONS)
def float_of(bits):
    """Return the float64 of these bits."""
    return np.int64(bits).view(np.float64)


@njit(
    ["UniTuple(int64, 2)(int64, int64, float32[::1])", "UniTuple(int64, 2)(int64, int64, float64[::1])"],
    **OPTIONS,
)
def extent(start, stop, values):
    """Return the least magnitude above 0 and the greatest, as bits of float64; NaN counts as the greatest."""
    least, most = _NOTHING, np.int64(0)
    part = values[start:stop]
    for j in range(len(part)):
        size = bits_of(part[j]) & _UNSIGNED
        most = max(most, size)
        least = min(least, size if size > 0 else _NOTHING)
    return least, most


@njit(**OPTIONS)
def _add_to_word(row, word, place, halves):
    """Add those parts of each number whose lowest bit lies in the word of this place."""
    for j in range(len(row)):
        bits = bits_of(row[j])
        exponent = (bits >> 52) & 2047
        whole = (bits & MANTISSA) | (np.int64(exponent > 0) << 52)
        start = max(exponent, 1) - 1
        upper = start + 29
        # A part of 24 or 29 bits, shifted by at most 31, has at most 60: `exact_sum.py` carries before 2^63.
        term = ((whole >> 29) << (upper & 31)) if upper >> 5 == place else 0
        if halves:
            term += ((whole & _LOW) << (start & 31)) if start >> 5 == place else 0
        word[j] += -term if bits < 0 else term


@njit(
    [
        "void(int64, int64, float32[:, ::1], int64[::1], int64[:, ::1], int64)",
        "void(int64, int64, float64[:, ::1], int64[::1], int64[:, ::1], int64)",
    ],
    **OPTIONS,
)
def add_values(start, stop, stack, offsets, words, lowest):
    """Add rows at columns start..stop to the words; row r begins at coordinate offsets[r]."""
    halves = stack.itemsize == 8
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        for r in range(len(stack)):
            for k in range(len(words)):
                word = words[k, offsets[r] + first : offsets[r] + last]
                _add_to_word(stack[r, first:last], word, lowest + k, halves)


@njit(inline="always", **OPTIONS)
def _word(bits, part):
    """Return the word in which the lowest bit of a magnitude lies, or that of its upper part, 29 above it."""
    return (max(bits >> 52, 1) - 1 + part) >> 5


@njit(
    [
        "UniTuple(int64, 2)(int64, int64, float32[:, ::1], int64[::1], int64[:, ::1], int64)",
        "UniTuple(int64, 2)(int64, int64, float64[:, ::1], int64[::1], int64[:, ::1], int64)",
    ],
    **OPTIONS,
)
def add_inside(start, stop, stack, offsets, words, lowest):
    """Add as `add_values` does while all numbers fit in the words; return the range that is left.

    A tile is read from memory once: it is still in the cache when it is added.
    """
    lower = 0 if stack.itemsize == 8 else 29
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        least, most = _NOTHING, np.int64(0)
        for r in range(len(stack)):
            low, high = extent(first, last, stack[r])
            least, most = min(least, low), max(most, high)
        if most > 0:
            if _word(least, lower) < lowest or _word(most, 29) >= lowest + len(words):
                return first, stop
            add_values(first, last, stack, offsets, words, lowest)
    return stop, stop


@njit(**OPTIONS)
def _carry(word, digits, carry):
    for j in range(len(word)):
        total = word[j] + carry[j]
        digits[j] = total & _DIGIT
        carry[j] = total >> 32


@njit(**OPTIONS)
def _take(digits, place, head, tail, places):
    """Take the digits of the next place, from the highest down: see `round_totals`."""
    for j in range(len(digits)):
        # Below 2^29, a head has room for 32 more bits: it stays below 2^62.
        more = abs(head[j]) < 1 << 29
        follows = places[j] == place + 1
        behind = digits[j] << 1 if follows else tail[j] | np.int64(digits[j] != 0)
        tail[j] = 0 if more else behind
        places[j] = place if more else places[j]
        head[j] = (head[j] << 32) + digits[j] if more else head[j]


@njit(**OPTIONS)
def _join(head, tail, places, lowest, out):
    for j in range(len(out)):
        # Both terms are exact (at most 46 and 48 bits), so that their sum is the only rounding. A total that
        # is not exact has at least 62 bits: its lowest bit, which stands for all that follows, is far below
        # the half that decides the rounding, and can only break a tie.
        lower = ((head[j] & 0xFFFF) << 32) | (tail[j] >> 1) | (tail[j] & 1)
        value = np.float64(head[j] >> 16) * 2.0**48 + np.float64(lower)
        # By two factors, since 2^exponent itself may be no normal number. A subnormal total is a multiple of
        # 2^-1074 as its terms are, and so is not rounded again.
        exponent = 32 * (places[j] - 1 + lowest) - 1074
        half = exponent >> 1
        out[j] = value * float_of((half + 1023) << 52) * float_of((exponent - half + 1023) << 52)


@njit("void(int64, int64, int64[:, ::1], int64, float64[::1])", **OPTIONS)
def round_totals(start, stop, words, lowest, out):
    """Write the totals of columns start..stop, each rounded once to float64 (to nearest, ties to even).

    After carrying, a total is digits in base 2^32, the highest with a sign. `head` takes digits from the
    highest on until it has 30 to 62 bits; `tail` is the digit that follows and, in its last bit, whether
    anything else does. Both together are two float64 without error, whose sum is rounded once.
    """
    count = len(words)
    digits = np.zeros((count + 1, TILE), np.int64)
    head, tail, places = np.zeros(TILE, np.int64), np.zeros(TILE, np.int64), np.zeros(TILE, np.int64)
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        digits[count] = 0
        for k in range(count):
            _carry(words[k, first:last], digits[k], digits[count])
        head[:], places[:] = 0, count + 1
        for k in range(count, -1, -1):
            _take(digits[k], k, head, tail, places)
        _join(head, tail, places, lowest, out[first:last])
