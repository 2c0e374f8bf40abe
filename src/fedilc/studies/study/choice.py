"""What is chosen on the training silos: the settings of a method, and the method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fedilc.studies.study.plan import StudyPlan

CLEARLY = 1.0  # standard errors by which a method must beat the regression (docs/research/study-evidence.md)
LEAST_GAIN = 0.01  # and in loss per example: of three sites the standard error says little


@dataclass(frozen=True)
class Choice:
    """The settings chosen for a held-out silo's group, the round, and the loss that they had there.

    `losses` has the loss by scored silo, and `options` the entry of the grid (see `StudyPlan.grid`).
    """

    options: Mapping[str, Any]
    round: int
    loss: float
    curve: Mapping[int, float]
    losses: Mapping[str, float] = field(default_factory=dict)


def choose(
    plan: StudyPlan,
    method: str,
    group: int,
    scored: Sequence[Sequence[Mapping[str, Any]]],
    base: Mapping[str, Any] | None = None,
) -> Choice | None:
    """Return the entry of the grid and the round of lowest loss over the silos outside a group.

    Args:
        plan: the study.
        method: whose settings are chosen.
        group: whose held-out silos the choice is for; what was scored on its own silos is not looked at.
        scored: per entry of the grid, what its runs recorded: a "curve" of losses by round and silo.
        base: what was chosen before (see `StudyPlan.base`).
    """
    own = set(plan.groups[group])
    best: Choice | None = None
    for options, records in zip(plan.grid(method, base), scored, strict=True):
        if any(record["failed"] for record in records):
            continue
        found = {
            int(number): {
                silo: loss
                for record in records
                for silo, loss in record["curve"][number].items()
                if silo not in own and np.isfinite(loss)
            }
            for number in records[0]["curve"]
        }
        curve = {number: float(np.mean([*of.values()])) if of else np.inf for number, of in found.items()}
        least = min(curve, key=lambda number: (curve[number], number))
        if np.isfinite(curve[least]) and (best is None or curve[least] < best.loss):
            best = Choice(options, least, curve[least], curve, found[least])
    return best


def chosen_method(
    choices: Mapping[str, Choice],
    algorithms: Sequence[str],
    plain: str | None = None,
    clearly: float = CLEARLY,
    least: float = LEAST_GAIN,
) -> str:
    """Return the algorithm whose settings had the lowest loss on the training silos, the first of equals.

    If this is not clearly lower than the loss of the regression `plain`, it is the regression: the mean
    difference over the scored silos must exceed `clearly` times its standard error, and be at least `least`.
    """
    best = min(algorithms, key=lambda name: choices[name].loss)
    if plain not in algorithms or best == plain:
        return best
    there, here = choices[str(plain)].losses, choices[best].losses
    gains = [there[silo] - here[silo] for silo in here if silo in there]
    error = float(np.std(gains, ddof=1)) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    gain = choices[str(plain)].loss - choices[best].loss
    return best if gain > clearly * error and gain >= least else str(plain)
