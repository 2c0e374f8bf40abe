"""The state of an aggregation: integers, whose sum is the same bits in any order and grouping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from fedilc.aggregation.sums.exact_sum import ExactSum
from fedilc.aggregation.sums.signed_logs import SignedLogs
from fedilc.errors import ConfigError

MOST_VALUES = (1 << 31) - 1


@dataclass
class Sums:
    """How many values came, and named exact sums for each parameter; for a mean, the sum of weights.

    `weights`: the exact sum of the given weights; `weighted`: how many values had one. Values without a
    weight count 1. `like`: tensors of each parameter's shape and dtype, without storage. `devices`: where the
    aggregates go.
    """

    like: dict[str, Tensor]
    devices: dict[str, torch.device]
    sums: dict[str, dict[str, ExactSum | SignedLogs]]
    weights: ExactSum
    weighted: int = 0
    count: int = 0

    def counted(self, values: int, weight: float | None = None) -> None:
        """Count values, and their weight (each 1 if none is given)."""
        if self.count + values > MOST_VALUES:
            raise ConfigError(f"an aggregate takes at most {MOST_VALUES:,} values")
        self.count += values
        if weight is not None:
            self.weighted += values
            self.weights.add(torch.tensor([weight], dtype=torch.float64))

    def total_weight(self) -> float:
        """Return the sum of all weights, rounded once."""
        total = deepcopy(self.weights)
        total.add(torch.tensor([float(self.count - self.weighted)], dtype=torch.float64))
        return float(total.total())

    def named_sums(self) -> Iterator[tuple[str, ExactSum | SignedLogs]]:
        """Yield every sum of a parameter, named "parameter/sum"."""
        for name, by_key in self.sums.items():
            for key, part in by_key.items():
                yield f"{name}/{key}", part


def add_up(
    states: Sequence[Sums], largest: Callable[[Tensor], None], total: Callable[[Tensor], None]
) -> None:
    """Give each of these states the sums of the same states in all processes, in place.

    `largest` and `total` are all-reduces of an int64 tensor, in place. The first agrees on which words each
    sum has. No word exceeds 2^32, so that 2^30 processes can be added up.
    """
    parts = [part for state in states for part in (state.weights, *dict(state.named_sums()).values())]
    exact = [part for part in parts if isinstance(part, ExactSum)]
    for part in exact:
        part.carry()
    spans = torch.tensor([part.span for part in exact], dtype=torch.int64)
    largest(spans)
    for part, (lowest, stop) in zip(exact, spans.tolist(), strict=True):
        part.widen(-lowest, stop)
    counts = torch.tensor([(state.count, state.weighted) for state in states])
    here = [counts, *(part.words if isinstance(part, ExactSum) else part.wide_words() for part in parts)]
    device = max((words.device for words in here), key=lambda device: device.type != "cpu")
    together = torch.cat([words.flatten().to(device) for words in here])
    total(together)
    sums = together.split([words.numel() for words in here])
    everywhere = [found.view(words.shape).to(words.device) for words, found in zip(here, sums, strict=True)]
    for state, (count, weighted) in zip(states, everywhere[0].tolist(), strict=True):
        state.count, state.weighted = 0, weighted
        state.counted(count)
    for one, words in zip(parts, everywhere[1:], strict=True):
        one.load(words)
