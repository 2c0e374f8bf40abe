"""Averaged weights: the server keeps w and, beside it, the mean of w over rounds, which is what users get.

After round t the average is a = a + r(t) (w - a), so that nothing but w and a must be kept:

- "ema": r(t) = (1 - d) / (1 - d^t), which makes a the mean of w after rounds 1 to t with weights d^(t - s).
- "last": r(t) = 1 / (t - start) after round `start`, which makes a the plain mean of w since then. Up to that
  round r(t) = 1: the average is w itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

DECAY, SHARE = 0.95, 0.25


@dataclass
class WeightAverage:
    """Exchange w and its average in the parameters of a model.

    In a round the parameters hold w; between rounds they hold the average, so that evaluation, callbacks,
    files and results use the average without knowing of it.

    Args:
        kind: "ema", an exponential moving average, or "last", the mean over the last rounds; None is neither.
        rounds: number of rounds of the run, of which "last" takes a share.
        decay: factor d by which "ema" lowers the weight of a round with each further one.
        share: share of the rounds that "last" averages; at least one round.

    Attributes:
        plain: w by name, while the parameters hold the average; empty if both are the same.

    >>> average, w = WeightAverage("last", rounds=4, share=0.5), {"w": Tensor([0.0])}
    >>> for number in range(1, 5):
    ...     changed = average.leave(w)
    ...     changed = w["w"].add_(1.0)
    ...     changed = average.enter(number, w)
    >>> w["w"], average.plain["w"]
    (tensor([3.5000]), tensor([4.]))
    """

    kind: Literal["ema", "last"] | None = None
    rounds: int = 1
    decay: float = DECAY
    share: float = SHARE
    plain: dict[str, Tensor] = field(init=False, default_factory=dict)
    _average: dict[str, Tensor] = field(init=False, default_factory=dict)

    def rate(self, number: int) -> float:
        """Return r(t), the weight of w in the average after round t; 1 makes the average w itself."""
        if self.kind == "ema":
            return (1 - self.decay) / (1 - self.decay**number)
        start = self.rounds - max(1, round(self.share * self.rounds))
        return 1 / (number - start) if self.kind == "last" and number > start else 1.0

    @torch.no_grad()
    def leave(self, weights: Mapping[str, Tensor]) -> bool:
        """Put w back into the parameters before a round; return whether this changed them."""
        self._average = {name: tensor.clone() for name, tensor in weights.items()} if self.kind else {}
        for name, tensor in self.plain.items():
            weights[name].copy_(tensor)
        return bool(self.plain)

    @torch.no_grad()
    def enter(self, number: int, weights: Mapping[str, Tensor]) -> bool:
        """Put the average after round `number` into the parameters; return whether this changed them."""
        rate = self.rate(number)
        if rate == 1:
            self.plain = {}
            return False
        self.plain = {name: tensor.clone() for name, tensor in weights.items()}
        for name, before in self._average.items():
            # One operation at a time: a fused one rounds otherwise in some memory layouts, and a resumed run
            # has others.
            weights[name].copy_(before + (self.plain[name] - before) * rate)
        return True
