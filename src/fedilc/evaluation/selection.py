"""Which round's model to report: three criteria, each a small function of the history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedilc.errors import ConfigError, nearest

Record = Mapping[str, Any]
WARM_UP_ROUNDS = 5


def _lowest(history: Sequence[Record], key: str, after: int = 0) -> Record | None:
    """The earliest record with the lowest value of `key` after some rounds, if any record has it."""
    measured = [record for record in history if record.get(key) is not None]
    late = [record for record in measured if record["round"] > after]
    return min(late or measured, key=lambda record: float(record[key]), default=None)


CRITERIA: dict[str, Callable[[Sequence[Record]], Record | None]] = {
    "oracle": lambda history: _lowest(history, "test_loss", WARM_UP_ROUNDS),
    "validation": lambda history: _lowest(history, "validation_loss"),
    "last": lambda history: history[-1] if history else None,
}


def select(history: Sequence[Record], criterion: str = "validation") -> Record:
    """The record of the round a criterion chooses.

    "oracle" is the paper's: the lowest out-of-distribution test loss after round 5, which nobody can
    know in practice. "validation" is the lowest mean validation loss over the training silos, and
    "last" the last round: both are honest.

    >>> rounds = [{"round": r, "validation_loss": loss} for r, loss in enumerate([3, 1, 2], 6)]
    >>> select(rounds, "validation")["round"]
    7
    """
    if criterion not in CRITERIA:
        raise ConfigError(f"criterion {criterion!r} is unknown{nearest(criterion, CRITERIA)}")
    chosen = CRITERIA[criterion](history)
    if chosen is None:
        needs = {"oracle": "a test set", "validation": "validation examples"}.get(criterion)
        raise ConfigError(f"criterion {criterion!r} cannot choose a round: it needs {needs or 'one'}")
    return chosen
