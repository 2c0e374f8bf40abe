"""How strong the penalty is in each round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """lambda of each round: `start` for the first `anneal_rounds`, then `penalty`."""

    penalty: float
    anneal_rounds: int = 0
    start: float = 1.0

    def at(self, round_: int) -> float:
        """Return lambda of a round; rounds count from 1."""
        return self.start if round_ <= self.anneal_rounds else self.penalty
