"""Notes on rows that are in two places: in two silos, in training and validation, in the test set too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedilc.data.profile import Profile
from fedilc.data.rows import chance
from fedilc.errors import listed

_MORE_THAN_CHANCE = 10
_NEARLY_ALL = 0.9


def is_trained_on(silos: Sequence[Profile], test: Profile) -> bool:
    """Return whether nearly all rows of the test set, with their labels, are in silos, and not by chance."""
    cases = np.unique(np.concatenate([silo.cases for silo in silos]))
    tested = int(np.isin(test.cases, cases).sum())
    if tested < _NEARLY_ALL * len(test.rows):
        return False
    equal = chance([silo.sample for silo in silos[:: max(1, len(silos) // 100)]])
    return tested > _MORE_THAN_CHANCE * equal * sum(len(silo.rows) for silo in silos) * len(test.rows)


def shared_rows(silos: Sequence[Profile], test: Profile | None) -> list[str]:
    """Return a note per kind of overlap, unless as many equal rows are to be expected by chance."""
    unique = [np.unique(silo.rows) for silo in silos]
    rows, times = np.unique(np.concatenate(unique), return_counts=True)
    twice = rows[times > 1]
    within = {s.name: n for s in silos if (n := int(np.isin(s.held_out, s.trained).sum()))}
    tested = 0 if test is None else int(np.isin(test.rows, rows).sum())
    if not (within or len(twice) or tested):
        return []
    equal = _MORE_THAN_CHANCE * chance([silo.sample for silo in silos[:: max(1, len(silos) // 100)]])
    total = sum(len(silo.rows) for silo in silos)
    notes = []
    if test is not None and tested > equal * total * len(test.rows):
        counts = {s.name: int(np.isin(test.rows, one).sum()) for s, one in zip(silos, unique, strict=True)}
        notes.append(
            f"{tested} of the {len(test.rows)} rows of the test set are also in {_counted(counts)}; a test "
            "on rows that were trained on says too much: keep each row on one side"
        )
    if len(twice) > equal * total**2 / 2:
        counts = {s.name: int(np.isin(one, twice).sum()) for s, one in zip(silos, unique, strict=True)}
        notes.append(
            f"{len(twice)} rows are in more than one silo: {_counted(counts)}; if they are the same cases, "
            "keep each in one silo"
        )
    pairs = sum(len(silo.held_out) * len(silo.trained) for silo in silos)
    if sum(within.values()) > equal * pairs:
        held_out = sum(len(silo.held_out) for silo in silos)
        notes.append(
            f"{sum(within.values())} of the {held_out} validation rows are also training rows of their silo: "
            f"{_counted(within)}; if they are the same cases, drop the repeated rows"
        )
    return notes


def _counted(counts: Mapping[str, int]) -> str:
    found = sorted((-count, name) for name, count in counts.items() if count)
    return listed([f"{name!r} ({-count})" for count, name in found])
