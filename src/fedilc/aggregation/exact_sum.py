"""Sums of floating-point numbers without rounding, so that their order does not matter.

A float64 is m 2^(p - 1074) with a whole number m < 2^53 and 0 <= p < 2046; float32 and narrower ones are such
numbers whose lowest 29 bits are zero. A sum is kept in int64 words: word k counts units of
2^(32 k - 1074). A number is added to the word in which its lowest bit lies, shifted left by less than
32 bits (a float64 in two parts, of 24 and 29 bits). What exceeds 32 bits is carried into the next word before
a word can overflow. Only words that a tensor needs are there: two or three for most gradients.

The total is rounded once, to the nearest float64, ties to even. Sums of logarithms have a fixed unit and
need fewer words: see `signed_logs.py`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedilc.aggregation import _kernels

DIGIT = (1 << 32) - 1
_MOST = (1 << 63) - (1 << 33)  # of a word's magnitude; what a carry adds still fits above it
_GROWTH = 1 << 55  # the most that a float32 adds to a word: 24 bits, shifted left by at most 31
_GROWTH_WIDE = (1 << 60) + _GROWTH  # of a float64: another 29 bits
_MANTISSA = (1 << 52) - 1
_INFINITE = 2047 << 52
_NO_WORD = 1 << 20


class ExactSum:
    """The sum of tensors of one shape: words `lowest`, `lowest` + 1, ..., one row each, on one device."""

    def __init__(self, shape: torch.Size, device: torch.device) -> None:
        self.shape, self.device = shape, device
        self.lowest = 0
        self.words = whole_zeros((0, shape.numel()), device)
        self._bound = 0

    def add(self, stack: Tensor, index: Tensor | None = None) -> bool:
        """Add every row of `stack`, or return False if one is NaN or infinite.

        With `index`, stack[i] is added at row index[i] of the sum only.
        """
        halves = stack.dtype == torch.float64 or not stack.is_floating_point()
        stack = stack.detach().to(self.device, torch.float64 if halves else torch.float32)
        rows = stack.reshape(stack.shape[0], stack.shape[1:].numel()).contiguous()
        growth = _GROWTH_WIDE if halves else _GROWTH
        group = (_MOST - (1 << 32)) // growth  # fits after a carry, which leaves at most 2^32 in a word
        if index is not None and rows.shape[0] > group:
            return self._add_indexed(rows, index, halves, growth, group)
        for start in range(0, rows.shape[0], group):
            part = rows[start : start + group]
            grown = part.shape[0] * growth
            if self._bound + grown > _MOST:
                self.carry()
            self._bound += grown
            if not self._add(part, None if index is None else index[start : start + group], halves):
                return False
        return True

    def _add_indexed(self, rows: Tensor, index: Tensor, halves: bool, growth: int, group: int) -> bool:
        """Add many rows at their places: in one go if no place gets more than `group` of them."""
        grown = most_repeated(index) * growth
        if grown > group * growth:
            half = len(rows) // 2
            return all(
                self._add_indexed(rows[part], index[part], halves, growth, group)
                for part in (slice(0, half), slice(half, None))
            )
        if self._bound + grown > _MOST:
            self.carry()
        self._bound += grown
        return self._add(rows, index, halves)

    def _make_room(self, rows: Tensor, halves: bool) -> bool:
        """Make sure that there are words for all these numbers, or return False if one is NaN or infinite."""
        least, most = _extent(rows)
        if most >= _INFINITE:  # the bits of magnitudes order as the magnitudes, and NaN is above infinity
            return False
        if most > 0:
            # From the word of the lowest bit of the smallest number to that of the upper part of the largest.
            # A part has at most 29 bits and is shifted by at most 31: its 60 bits stay in that int64 word.
            lowest_bit = _place(least) + (0 if halves else 29)
            self.widen(lowest_bit >> 5, (_place(most) + 29 >> 5) + 1)
        return True

    def _add(self, rows: Tensor, index: Tensor | None, halves: bool) -> bool:
        width = rows.shape[1]
        if _kernels.usable(rows):
            offsets = np.zeros(len(rows), np.int64) if index is None else (index * width).numpy()
            values, size = rows.numpy(), len(rows) * (1 + len(self.words))
            words = self.words.numpy(), self.lowest
            left = _kernels.run("values.add_inside", width, size, values, offsets, *words)
            left = [(start, stop) for start, stop in left if start < stop]
            if left:
                if not self._make_room(rows, halves):
                    return False
                words = self.words.numpy(), self.lowest
                _kernels.run_ranges("values.add_values", left, width * size, values, offsets, *words)
            return True
        if not self._make_room(rows, halves):
            return False
        bits = rows.double().view(torch.int64)
        exponent = (bits >> 52) & 2047
        whole = (bits & _MANTISSA) | ((exponent > 0).to(torch.int64) << 52)
        start = exponent.clamp(min=1) - 1
        parts = [(whole >> 29, start + 29)] + ([(whole & ((1 << 29) - 1), start)] if halves else [])
        for k, word in enumerate(self.words, self.lowest):
            for digits, place in parts:
                term = (digits << (place & 31)).where(place >> 5 == k, 0)
                term = torch.where(bits < 0, -term, term)
                if index is None:
                    word += term.sum(0)
                else:
                    word.view(-1, width).index_add_(0, index, term)
        return True

    @property
    def span(self) -> tuple[int, int]:
        """Return -lowest and the number above the highest word; the larger of two such pairs spans both."""
        return (-self.lowest, self.lowest + len(self.words)) if len(self.words) else (-_NO_WORD, -_NO_WORD)

    def widen(self, lowest: int, stop: int) -> None:
        """Make sure that there are words `lowest` to `stop` - 1."""
        if stop <= lowest:
            return
        count = self.words.shape[0]
        if count == 0:
            self.lowest = lowest
        below = max(0, self.lowest - lowest)
        above = max(0, stop - self.lowest - count)
        if below or above:
            grown = whole_zeros((below + count + above, self.words.shape[1]), self.device)
            grown[below : below + count] = self.words
            self.words, self.lowest = grown, self.lowest - below

    def carry(self) -> None:
        """Leave at most 32 bits in every word, so that many may be added again."""
        if self._bound <= 1 << 32 or not len(self.words):
            return
        # The highest word keeps its sign and is not cut. From below it gets at most 2^63 >> 32 = 2^31, so it
        # stays within 2^32 if it had less than 2^31; if it has more, a new word takes what exceeds 32 bits.
        if bool((self.words[-1].abs() >= 1 << 31).any()):
            self.widen(self.lowest, self.lowest + len(self.words) + 1)
        for word, above in zip(self.words[:-1], self.words[1:], strict=True):
            # A shift rounds down, so that word = (word >> 32) 2^32 + (word & DIGIT) also if it is negative.
            above += word >> 32
            word &= DIGIT
        self._bound = 1 << 32

    def load(self, words: Tensor) -> None:
        """Replace the words with these, none of which exceeds 2^62."""
        self.words, self._bound = words, 1 << 62

    def digits(self) -> tuple[int, Tensor]:
        """Return the sum in two's complement: the lowest word's number, and the rows of 32 bits it needs."""
        if not len(self.words):
            return 0, self.words.to(torch.int32)
        self.widen(self.lowest, self.lowest + len(self.words) + 1)  # room for the sign
        self._bound = _MOST  # `carry` does nothing below 2^32, where a word may still be negative
        self.carry()
        rows = self.words.to(torch.int32)
        start, stop = 0, len(rows)
        # A highest row that only repeats the sign bit of the row below it says nothing new.
        while stop > 1 and bool((rows[stop - 1] == rows[stop - 2] >> 31).all()):
            stop -= 1
        while start < stop and not bool(rows[start].any()):
            start += 1
        return (self.lowest + start if start < stop else 0), rows[start:stop]

    def add_digits(self, lowest: int, rows: Tensor) -> None:
        """Add a sum as `digits` gives it, in place."""
        if not len(rows):
            return
        if self._bound + (1 << 32) > _MOST:
            self.carry()
        self._bound += 1 << 32
        self.widen(lowest, lowest + len(rows))
        start = lowest - self.lowest
        for place, row in enumerate(rows.to(self.device), start):
            last = place == start + len(rows) - 1  # only the last row has a sign; others are 32 plain bits
            self.words[place] += row if last else row.long() & DIGIT

    def total(self) -> Tensor:
        """Return the sum, rounded once to float64."""
        if _kernels.usable(self.words):
            size, count = self.shape.numel(), self.words.shape[0]
            out = torch.empty(self.shape, dtype=torch.float64)
            arguments = (self.words.numpy(), self.lowest, out.view(-1).numpy())
            _kernels.run("values.round_totals", size, 4 + 4 * count, *arguments)
            return out
        return _rounded(self.words, self.lowest).view(self.shape)


def most_repeated(index: Tensor | None) -> int:
    """Return how often the most frequent of these places occurs; 0 if there are none."""
    return 0 if index is None or not len(index) else int(torch.bincount(index).max())


def _extent(rows: Tensor) -> tuple[int, int]:
    """Return the least and the greatest magnitude that is not 0, as bits of float64."""
    if _kernels.usable(rows):
        found = _kernels.run("values.extent", rows.numel(), 1, rows.view(-1).numpy())
        return min(least for least, _ in found), max(most for _, most in found)
    size = rows.double().abs().view(torch.int64)
    if size.numel() == 0:
        return 0, 0
    return int(size.where(size > 0, _INFINITE).min()), int(size.max())


def _place(bits: int) -> int:
    """Return p of a magnitude m 2^(p - 1074), given as bits of float64; subnormal numbers have p = 0."""
    return max(bits >> 52, 1) - 1


def _rounded(words: Tensor, lowest: int) -> Tensor:
    """Round as the compiled `round_totals` does, operation by operation; its docstring explains the steps."""
    digits = []
    carry = words.new_zeros(words.shape[1])
    for word in words:
        total = word + carry
        digits.append(total & DIGIT)
        carry = total >> 32
    head, tail = torch.zeros_like(carry), torch.zeros_like(carry)
    places = torch.full_like(carry, len(words) + 1)
    for place, digit in zip(range(len(words), -1, -1), [carry, *reversed(digits)], strict=True):
        more = head.abs() < 1 << 29
        behind = torch.where(places == place + 1, digit << 1, tail | (digit != 0))
        tail = behind.where(~more, 0)
        places = torch.where(more, place, places)
        head = torch.where(more, (head << 32) + digit, head)
    lower = ((head & 0xFFFF) << 32) | (tail >> 1) | (tail & 1)
    value = (head >> 16).double() * 2.0**48 + lower.double()
    exponent = 32 * (places - 1 + lowest) - 1074
    for power in (exponent >> 1, exponent - (exponent >> 1)):
        value = value * ((power + 1023) << 52).view(torch.float64)
    return value


def whole_zeros(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return int64 zeros, on the CPU from numpy: torch would clear large blocks a second time."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(shape, np.int64))
    return torch.zeros(shape, dtype=torch.int64, device=device)
