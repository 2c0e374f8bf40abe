"""How large lambda, the weight of the penalty, is in each round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """lambda per round: `start` for the first `anneal_rounds`, then `penalty_weight`."""

    penalty_weight: float
    anneal_rounds: int = 0
    start: float = 1.0

    def at(self, round_: int) -> float:
        """Return lambda of a round; rounds count from 1."""
        return self.start if round_ <= self.anneal_rounds else self.penalty_weight
