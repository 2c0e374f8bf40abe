"""lambda, the weight of a penalty: its value in each round, and how the penalty gradient is added.

w is updated with (aggregate of the silos' gradients) + lambda * (sum over silos of J_e^T v_e). With local
steps, or if silos are aggregated by an unweighted mean, a trimmed mean or a median, each silo adds its own
term to its gradient, times lambda E because the mean divides by E, and sends one group of tensors
(`Algorithm.adds_up_in_silo`). Otherwise it sends both, and the server adds the sum of the terms after the
aggregation.

A silo whose environments do not vote multiplies v_e instead of the product, which is the same because
J_e^T (lambda E v_e) = lambda E J_e^T v_e, and needs only one backward pass (`SiloComputation`). All others
call `add_penalty`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class PenaltySchedule:
    """lambda per round: `start` for the first `anneal_rounds`, then `penalty_weight`."""

    penalty_weight: float
    anneal_rounds: int = 0
    start: float = 1.0

    def at(self, round_: int) -> float:
        """Return lambda of a round; rounds count from 1."""
        return self.start if round_ <= self.anneal_rounds else self.penalty_weight


def add_penalty(
    gradient: Mapping[str, Tensor], penalty_gradient: Mapping[str, Tensor], weight: float
) -> dict[str, Tensor]:
    """Return gradient + weight * penalty gradient, by parameter; the weight is lambda, or lambda E in a silo.

    >>> import torch
    >>> add_penalty({"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}, 3.0)
    {'w': tensor([7.])}
    """
    return {name: value + weight * penalty_gradient[name] for name, value in gradient.items()}
