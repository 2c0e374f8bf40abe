"""The record of a round's training, before evaluation: losses, the penalty, and each silo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedilc.federation.outliers import Norms
from fedilc.federation.run_parts import Reduction
from fedilc.federation.runtime import Facts
from fedilc.federation.silo_weights import SiloWeights


def training_record(
    number: int, answers: Facts, weights: SiloWeights, penalty_weight: float, reduction: Reduction
) -> dict[str, Any]:
    """Return the round, the train loss and, if there is a penalty, L and lambda."""
    record: dict[str, Any] = {"round": number, "train_loss": mean_loss(answers, weights)}
    if penalty_weight:
        distance = _mean([facts["distance"] for facts in answers.values()])
        record["penalty"] = distance * (len(answers) if reduction == "sum" else 1)
        record["penalty_weight"] = penalty_weight
    return record


def mean_loss(answers: Facts, weights: SiloWeights) -> float:
    """Return the mean training loss over silos, with the weights of their updates."""
    counts = [weights.of(silo, facts) for silo, facts in answers.items()]
    losses = [facts["loss"] or 0.0 for facts in answers.values()]
    if None in counts:
        return _mean(losses)
    total = sum(count for count in counts if count is not None)
    return sum((count or 0) * loss for count, loss in zip(counts, losses, strict=True)) / total


def silo_records(answers: Facts, norms: Norms, max_norm: float | None) -> dict[str, dict[str, Any]]:
    """Return examples and loss per silo, and the norm of an update that was clipped."""
    found = {
        silo: {"examples": facts["examples"], "train_loss": facts["loss"]} for silo, facts in answers.items()
    }
    if max_norm is not None:
        for silo, norm in norms.items():
            if norm > max_norm:
                found[silo]["clipped_from"] = norm
    return found


def _mean(numbers: Sequence[float | None]) -> float:
    return sum(number or 0.0 for number in numbers) / len(numbers)
