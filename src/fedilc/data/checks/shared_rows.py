"""Rows that are in two places: in two silos, in training and validation, or in the test set too.

Rows are compared by hashes, and overlaps that chance explains are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedilc.errors import listed

if TYPE_CHECKING:
    from fedilc.data.checks.profile import Profile

Hashes = NDArray[np.int64]
_CHUNK = 1 << 14
_MORE_THAN_CHANCE = 10
_NEARLY_ALL = 0.9


def row_hashes(x: NDArray[np.float32]) -> Hashes:
    """Return a 64-bit hash of each example's inputs; equal inputs have equal hashes.

    Hashes are comparable only inside this process: another process has other hashes.
    """
    found = np.empty(len(x), dtype=np.int64)
    for start in range(0, len(x), _CHUNK):
        block = _rows(x[start : start + _CHUNK])
        raw, width = block.tobytes(), block.shape[1] * block.itemsize
        found[start : start + _CHUNK] = [hash(raw[i : i + width]) for i in range(0, len(raw), width)]
    return found


def with_labels(hashes: Hashes, y: NDArray[np.float32]) -> Hashes:
    """Return hashes of inputs and labels together."""
    bits = (y.astype(np.float32) + np.float32(0)).view(np.int32).astype(np.int64)
    return hashes ^ (bits * np.int64(0x9E3779B97F4A7C1))


def _rows(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return inputs as a matrix, with -0 replaced by 0."""
    return x.reshape(len(x), -1) + np.float32(0)


def same_rows(one: Hashes, other: Hashes) -> bool:
    """Return whether two sets of examples are the same, in any order."""
    return len(one) == len(other) and bool((np.sort(one) == np.sort(other)).all())


def sample_rows(x: NDArray[np.float32], most: int) -> NDArray[np.float32]:
    """Return at most `most` rows, evenly spread over a set of examples, for `chance`."""
    return _rows(x[:: max(1, len(x) // most)][:most])


def chance(samples: Sequence[NDArray[np.float32]]) -> float:
    """Return the probability that two examples have equal inputs by chance, if columns are independent.

    Rows of a few yes/no columns are often equal; rows of measurements are not.
    """
    rows = np.concatenate(samples)
    probability = 1.0
    for column in rows.T:
        counts = np.unique(column, return_counts=True)[1]
        probability *= float((counts * (counts - 1)).sum()) / (len(column) * max(1, len(column) - 1))
        if probability < 1e-12:
            break
    return probability


def is_trained_on(silos: Sequence[Profile], test: Profile) -> bool:
    """Return whether nearly all rows of the test set, with their labels, are in silos, and not by chance."""
    cases = np.unique(np.concatenate([silo.cases for silo in silos]))
    tested = int(np.isin(test.cases, cases).sum())
    if tested < _NEARLY_ALL * len(test.rows):
        return False
    equal = chance([silo.sample for silo in silos[:: max(1, len(silos) // 100)]])
    return tested > _MORE_THAN_CHANCE * equal * sum(len(silo.rows) for silo in silos) * len(test.rows)


def overlaps(silos: Sequence[Profile], test: Profile | None) -> dict[str, str]:
    """Return a note per kind of overlap: "test", "silos", "validation"; none if chance explains it."""
    unique = [np.unique(silo.rows) for silo in silos]
    rows, times = np.unique(np.concatenate(unique), return_counts=True)
    twice = rows[times > 1]
    within = {s.name: n for s in silos if (n := int(np.isin(s.held_out, s.trained).sum()))}
    tested = 0 if test is None else int(np.isin(test.rows, rows).sum())
    if not (within or len(twice) or tested):
        return {}
    equal = _MORE_THAN_CHANCE * chance([silo.sample for silo in silos[:: max(1, len(silos) // 100)]])
    total = sum(len(silo.rows) for silo in silos)
    notes = {}
    if test is not None and tested > equal * total * len(test.rows):
        counts = {s.name: int(np.isin(test.rows, one).sum()) for s, one in zip(silos, unique, strict=True)}
        notes["test"] = (
            f"{tested} of the {len(test.rows)} rows of the test set are also in {_counted(counts)}; a test "
            "on rows that were trained on says too much: keep each row on one side"
        )
    if len(twice) > equal * total**2 / 2:
        counts = {s.name: int(np.isin(one, twice).sum()) for s, one in zip(silos, unique, strict=True)}
        notes["silos"] = (
            f"{len(twice)} rows are in more than one silo: {_counted(counts)}; if they are the same cases, "
            "keep each in one silo"
        )
    pairs = sum(len(silo.held_out) * len(silo.trained) for silo in silos)
    if sum(within.values()) > equal * pairs:
        held_out = sum(len(silo.held_out) for silo in silos)
        notes["validation"] = (
            f"{sum(within.values())} of the {held_out} validation rows are also training rows of their silo: "
            f"{_counted(within)}; if they are the same cases, drop the repeated rows"
        )
    return notes


def _counted(counts: Mapping[str, int]) -> str:
    found = sorted((-count, name) for name, count in counts.items() if count)
    return listed([f"{name!r} ({-count})" for count, name in found])
