"""How many values of each sign there are, and the sums of their logarithms, as whole numbers.

The sums are in *wide* words: a count, and the sum of logarithms in two words, of which the lower keeps 32
bits. The compiled loops add a reply to one *packed* word per sign and coordinate instead, which holds a count
and a sum at once (`fixed_point.py`); packed words that have no more room are spilled into wide ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedilc.aggregation import _kernels
from fedilc.aggregation.sums.exact_sum import DIGIT, whole_zeros
from fedilc.aggregation.sums.fixed_point import BIAS, FIELD, NARROW, ROOM, WIDE, fixed_log2

_VALUES_AT_ONCE = 1 << 22


class SignedLogs:
    """Counts and sums of logarithms of the positive (first) and the negative (second) values of a tensor."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype
        self.kind = WIDE if dtype == torch.float64 else NARROW
        self.packed = self._zeros(2, 0)
        self.wide = self._zeros(3, 2, 0)
        self._filled = 0

    def add(self, stack: Tensor, index: Tensor | None = None) -> bool:
        """Add every row of `stack`, as `ExactSum.add`; False says that one was NaN or infinite."""
        stack = stack.detach().to(self.device)
        rows = stack.reshape(len(stack), stack.shape[1:].numel())
        compiled = _kernels.usable(rows) and self.kind == NARROW
        group = ROOM if compiled else max(1, _VALUES_AT_ONCE // max(1, rows.shape[1]))
        finite = True
        for start in range(0, len(rows), group):
            part = slice(start, start + group)
            add = self._add_packed if compiled else self._add_plainly
            finite &= add(rows[part], None if index is None else index[part])
        return finite

    def add_products(self, left: Tensor, right: Tensor) -> bool:
        """Add left_e^T right_e for each e, as `add` does, without storing one of them; float32 on the CPU."""
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

    def _add_packed(self, rows: Tensor, index: Tensor | None) -> bool:
        self._make_room(len(rows))
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
        units = logs * 2.0 ** (self.kind.fraction - 32)
        high = units.floor()
        low = ((units - high) * 2.0**32).round()
        self._add_wide(torch.stack([counts, low.long(), high.long()]).view(3, 2, -1))

    def add_words(self, counts: Tensor, low: Tensor, high: Tensor, values: int) -> None:
        """Add the wide words of at most `values` values, in any whole dtypes; `low` without its sign."""
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
        """Take over wide words."""
        self.packed, self.wide, self._filled = self._zeros(2, 0), self._zeros(3, 2, 0), 0
        self._add_wide(wide)

    def wide_words(self) -> Tensor:
        """Return all as wide words: counts, lower and upper words of logarithms, each for both signs."""
        self.spill()
        return self.wide if self.wide.numel() else self._zeros(3, 2, self.shape.numel())

    def counts_and_logs(self) -> tuple[Tensor, Tensor]:
        """Return counts and sums of log2, rounded once to float64, each for both signs."""
        count, low, high = self.wide_words().double().view(3, 2, *self.shape)
        return count, (high * 2.0**32 + low) * 2.0**-self.kind.fraction

    def _zeros(self, *shape: int) -> Tensor:
        return whole_zeros(shape, self.device)
