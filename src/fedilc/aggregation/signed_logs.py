"""Sums of logarithms by sign, as whole numbers: what the weighted geometric mean is made of.

`FixedPoint` turns log2|g| into whole numbers, `SignedLogs` counts values of each sign and adds up their
logarithms, and the sums of many outer products are found without forming one of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedilc.aggregation import _kernels
from fedilc.aggregation.exact_sum import DIGIT, most_repeated, whole_zeros

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
# Products of up to ROWS rows count both signs in one float32, as positives + (ROWS + 1) negatives. That is at
# most 4095 + 4096 * 4095 = 2^24 - 1, which float32 holds exactly.
ROWS = 4095
_VALUES_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class FixedPoint:
    """How many bits logarithms have after the point, and the series for log2(m)."""

    fraction: int
    series: tuple[float, ...]


NARROW, WIDE = FixedPoint(36, LOG2_NARROW), FixedPoint(46, LOG2_WIDE)


class SignedLogs:
    """Counts and sums of logarithms of the positive (first) and the negative (second) values of a tensor."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype
        self.kind = WIDE if dtype == torch.float64 else NARROW
        self.packed = self._zeros(2, 0)
        self.wide = self._zeros(3, 2, 0)
        self._filled = 0

    def add(self, stack: Tensor, index: Tensor | None = None) -> bool:
        """Add every row of `stack`, as `ExactSum.add` does; return False if one is NaN or infinite."""
        stack = stack.detach().to(self.device)
        most = most_repeated(index)
        rows = stack.reshape(len(stack), stack.shape[1:].numel())
        compiled = _kernels.usable(rows) and self.kind == NARROW
        if compiled and 0 < most <= ROOM:
            return self._add_packed(rows, index, most)
        group = ROOM if compiled else max(1, _VALUES_AT_ONCE // max(1, rows.shape[1]))
        finite = True
        for start in range(0, len(rows), group):
            part = slice(start, start + group)
            add = self._add_packed if compiled else self._add_plainly
            finite &= add(rows[part], None if index is None else index[part])
        return finite

    def add_products(self, left: Tensor, right: Tensor) -> bool:
        """Add left_e^T right_e for each e, as `add` does, without storing any; for float32 on the CPU."""
        left, right = left.detach(), right.detach().contiguous()
        finite = True
        for ours, theirs in zip(left.split(ROOM), right.split(ROOM), strict=True):
            self._make_room(len(ours))
            arguments = ours.numpy(), theirs.numpy(), self.packed.numpy()
            size, values = left.shape[2], len(ours) * right.shape[2]
            finite &= all(_kernels.run("logs.add_products", size, values, *arguments, tile=1, ranges=2))
        return finite

    def _make_room(self, rows: int) -> None:
        """Make sure that packed words have room for `rows` more values."""
        if self._filled + rows > ROOM:
            self.spill()
        if not self.packed.numel():
            self.packed = self._zeros(2, self.shape.numel())
        self._filled += rows

    def _add_packed(self, rows: Tensor, index: Tensor | None, most: int | None = None) -> bool:
        self._make_room(most or len(rows))
        width = rows.shape[1]
        offsets = torch.empty(0, dtype=torch.int64) if index is None else index * width
        arguments = (rows.float().contiguous().numpy(), offsets.numpy(), self.packed.numpy())
        return all(_kernels.run("logs.add_logs", width, len(rows), *arguments))

    def _add_plainly(self, rows: Tensor, index: Tensor | None) -> bool:
        if not bool(torch.isfinite(rows).all()):
            return False
        logs = fixed_log2(rows, self.kind)
        words = self._zeros(3, 2, self.shape.numel())
        for side, members in enumerate((rows > 0, rows < 0)):
            for word, terms in zip(words[:, side], (members.long(), logs & DIGIT, logs >> 32), strict=True):
                terms = terms.where(members, 0)
                if index is None:
                    word += terms.sum(0)
                else:
                    word.view(-1, rows.shape[1]).index_add_(0, index, terms)
        self._add_wide(words)
        return True

    def add_sums(self, counts: Tensor, logs: Tensor) -> None:
        """Add counts and sums of log2 (float64), each for both signs; the sums are rounded once."""
        # Scaling by powers of two and splitting off whole numbers are exact: only `round` rounds.
        units = logs * 2.0 ** (self.kind.fraction - 32)
        high = units.floor()
        low = ((units - high) * 2.0**32).round()
        self._add_wide(torch.stack([counts, low.long(), high.long()]).view(3, 2, -1))

    def add_words(self, counts: Tensor, low: Tensor, high: Tensor, values: int) -> None:
        """Add the wide words of at most `values` values, in any integer dtypes; `low` is unsigned."""
        if not (_kernels.usable(self.packed) and self.kind == NARROW and values <= ROOM):
            self._add_wide(torch.stack([counts.long(), low.long() & DIGIT, high.long()]))
            return
        self._make_room(values)
        for place, side in enumerate(self.packed):
            side += (high[place].long() << 32) + (low[place].long() & DIGIT)
            side += counts[place].long() * ((1 << FIELD) + BIAS)

    def _add_wide(self, words: Tensor) -> None:
        self.spill()
        self.wide = self.wide + words.to(self.device) if self.wide.numel() else words.to(self.device)
        # Lower words are below 2^32, and at most 2^30 of them are added before this carry: the sum fits.
        self.wide[2] += self.wide[1] >> 32
        self.wide[1] &= DIGIT

    def spill(self) -> None:
        """Move packed words into wide ones."""
        if self._filled:
            if not self.wide.numel():
                self.wide = self._zeros(3, 2, self.shape.numel())
            _kernels.run("logs.spill", self.shape.numel(), 8, self.packed.numpy(), self.wide.numpy())
            self._filled = 0

    def load(self, wide: Tensor) -> None:
        """Replace the sums with these wide words."""
        self.packed, self.wide, self._filled = self._zeros(2, 0), self._zeros(3, 2, 0), 0
        self._add_wide(wide)

    def wide_words(self) -> Tensor:
        """Return all sums as wide words: counts, lower and upper words of logarithms, each for both signs."""
        self.spill()
        return self.wide if self.wide.numel() else self._zeros(3, 2, self.shape.numel())

    def counts(self) -> Tensor:
        """Return how many values are positive and how many are negative, as whole numbers."""
        packed = self.packed >> FIELD if self._filled else self._zeros(2, self.shape.numel())
        return (packed + self.wide[0] if self.wide.numel() else packed).view(2, *self.shape)

    def counts_and_logs(self) -> tuple[Tensor, Tensor]:
        """Return counts and sums of log2, rounded once to float64, each for both signs."""
        count, low, high = self.wide_words().double().view(3, 2, *self.shape)
        return count, (high * 2.0**32 + low) * 2.0**-self.kind.fraction

    def _zeros(self, *shape: int) -> Tensor:
        return whole_zeros(shape, self.device)


def fixed_log2(values: Tensor, kind: FixedPoint) -> Tensor:
    """Return log2|v| in units of 2^-fraction, as int64; for 0 it is some whole number.

    >>> fixed_log2(torch.tensor([1.0, -0.25]), NARROW).tolist() == [0, -2 << 36]
    True
    """
    size = values.double().abs()
    tiny = size < 2.0**-1022  # subnormal: the product is exact, and its exponent is lowered again below
    size = torch.where(tiny, size * 2.0**54, size)
    bits = size.view(torch.int64)
    mantissa = (bits & MANTISSA | ONE_BITS).view(torch.float64)
    s = (mantissa - SQRT2) / (mantissa + SQRT2)
    fraction = _polynomial(kind.series, s * s) * s * 2.0**kind.fraction
    # The 1/2 of the series is 2^(fraction - 1) units; it is added with the rounder, in one rounding.
    units = (fraction + (ROUNDER + 2.0 ** (kind.fraction - 1))).view(torch.int64) - ROUNDER_BITS
    exponent = (bits >> 52) - torch.where(tiny, 1023 + 54, 1023)
    return (exponent << kind.fraction) + units


def exp2(x: Tensor) -> Tensor:
    """Return 2^x of float64 numbers with -1100 < x <= 1024; what overflows is the largest float64."""
    whole = (x + ROUNDER) - ROUNDER
    part = x - whole
    value = _polynomial(EXP2, part) * part + 1.0
    # By two factors, since 2^exponent itself may overflow or be subnormal, which shifted bits cannot express.
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


def outer_sums(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return |P| and |N|, and the sums of log2 over P and N, of left_i right_i^T over rows i.

    Exchanging the signs of `left` exchanges P and N to the bit: both sides go through the same products.
    No product is formed, because log|d a| = log|d| + log|a|: sums over i are products of matrices.
    """
    if left.dtype.itemsize < 4:
        left, right = left.float(), right.float()
    add = _signed if bool((right < 0).any()) else _positive
    shape = (2, left.shape[1], right.shape[1])
    counts = torch.zeros(shape, dtype=torch.int64, device=left.device)
    logs = torch.zeros(shape, dtype=torch.float64, device=left.device)
    for d, a in zip(left.split(ROWS), right.split(ROWS), strict=True):
        add(d, a, counts, logs)
    return counts, logs / math.log(2.0)


def _positive(d: Tensor, a: Tensor, counts: Tensor, logs: Tensor) -> None:
    """Add the sums if no input is negative."""
    rows = len(d)
    members, present = d.new_empty(2 * rows, d.shape[1]), a.new_empty(2 * rows, a.shape[1])
    log_d = _masked_log(d)
    torch.gt(a, 0, out=present[:rows])
    present[rows:] = _masked_log(a)
    signs = torch.add((d > 0).to(d.dtype), (d < 0).to(d.dtype), alpha=ROWS + 1)
    _add_counts(signs.T @ present[:rows], counts)
    for side, compare in enumerate((torch.gt, torch.lt)):
        compare(d, 0, out=members[rows:])
        torch.mul(members[rows:], log_d, out=members[:rows])
        logs[side] += members.T @ present


def _signed(d: Tensor, a: Tensor, counts: Tensor, logs: Tensor) -> None:
    """Add the sums for any signs: T over all non-zero products, Q with their signs; P is half of T + Q."""
    up, down = (d > 0).to(d.dtype), (d < 0).to(d.dtype)
    above, below = (a > 0).to(a.dtype), (a < 0).to(a.dtype)
    log_d, log_a = _masked_log(d), _masked_log(a)
    joined = torch.cat([torch.add(up, down, alpha=ROWS + 1), torch.add(down, up, alpha=ROWS + 1)])
    _add_counts(joined.T @ torch.cat([above, below]), counts)
    present, sign_d, sign_a = up + down, up - down, above - below
    both = torch.cat([log_d, present]).T @ torch.cat([above + below, log_a])
    difference = torch.cat([sign_d * log_d, sign_d]).T @ torch.cat([sign_a, sign_a * log_a])
    t, q = both.double(), difference.double()
    logs[0] += (t + q) / 2
    logs[1] += (t - q) / 2


def _masked_log(values: Tensor) -> Tensor:
    """Return log|v|, and 0 if v is 0; the logarithm of zero itself would take the processor's slow path."""
    size = values.abs()
    return size.add_(size == 0).log_()


def _add_counts(packed: Tensor, counts: Tensor) -> None:
    """Add counts that are packed as positives + (ROWS + 1) negatives."""
    whole = packed.round().to(torch.int64)
    negatives = whole // (ROWS + 1)
    counts[0] += whole - negatives * (ROWS + 1)
    counts[1] += negatives
