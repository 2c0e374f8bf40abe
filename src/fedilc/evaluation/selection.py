"""Choose the round whose model is reported, by one of three criteria."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedilc.errors import ConfigError, nearest

Record = Mapping[str, Any]
PAPER_WARM_UP = 5  # rounds that the paper's oracle skips; only `reproduce` does so
ORACLE = "oracle: the round of lowest test loss, which nobody can know in practice"


def _lowest(history: Sequence[Record], key: str, after: int = 0) -> Record | None:
    """Return the earliest record with the lowest value of `key`, among rounds later than `after` if any."""
    measured = [record for record in history if record.get(key) is not None]
    late = [record for record in measured if record["round"] > after]
    return min(late or measured, key=lambda record: float(record[key]), default=None)


CRITERIA: dict[str, Callable[[Sequence[Record], int], Record | None]] = {
    "oracle": lambda history, after: _lowest(history, "test_loss", after),
    "validation": lambda history, _: _lowest(history, "validation_loss"),
    "last": lambda history, _: history[-1] if history else None,
}


def select(history: Sequence[Record], criterion: str = "validation", *, warm_up: int = 0) -> Record:
    """Return the record of the round a criterion chooses.

    "oracle" is the lowest out-of-distribution test loss, which nobody can know in practice; it skips the
    first `warm_up` rounds if a later one was measured (the paper skips `PAPER_WARM_UP`). "validation" is the
    lowest mean validation loss over the training silos, and "last" the last round: both need no test set.

    >>> rounds = [{"round": r, "validation_loss": loss} for r, loss in enumerate([3, 1, 2], 6)]
    >>> select(rounds, "validation")["round"]
    7
    """
    if criterion not in CRITERIA:
        raise ConfigError(f"criterion {criterion!r} is unknown{nearest(criterion, CRITERIA)}")
    chosen = CRITERIA[criterion](history, warm_up)
    if chosen is None:
        needs = {"oracle": "a test set", "validation": "validation examples"}.get(criterion, "one")
        raise ConfigError(f"criterion {criterion!r} cannot choose a round: it needs {needs}")
    return chosen


def selections(history: Sequence[Record], *, warm_up: int = 0) -> dict[str, Record]:
    """Return the record of the round that each criterion chooses, for the criteria that can choose one."""
    chosen = {name: choose(history, warm_up) for name, choose in CRITERIA.items()}
    return {name: record for name, record in chosen.items() if record is not None}
