"""Counts of events and non-events by predicted risk, between fixed risks, with a floor for every count.

The decision curve (true and false positives at a threshold) and the histogram of predicted risks are sums of
the same counts, so that nobody can subtract one from the other and get a smaller count. Where a count between
two neighbouring risks is below the floor, the risk that parts them is left out: the counts on both sides of
it are then told as one. So every count is at least the floor, and all of them add up to all examples.

    >>> y, risks = np.array([0, 0, 0, 1, 1, 1]), np.array([[0.1, 0.2, 0.6, 0.2, 0.7, 0.8]])
    >>> found = risk_counts(y, risks, (), grid=(0.15, 0.5))
    >>> found.edges, found.events, found.others
    ((0.15, 0.5), (0, 1, 2), (1, 1, 1))
    >>> found = risk_counts(y, risks, (), Floors(min_cell=1 + 1), grid=(0.15, 0.5))
    >>> found is None or found.edges
    ()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedilc.evaluation.calibration import Floats
from fedilc.evaluation.estimates import NO_FLOORS, Floors

_ENDS = [number / 1000 for number in range(1, 10)]
GRID = (*_ENDS, *(number / 100 for number in range(1, 100)), *(number / 1000 for number in range(991, 1000)))


@dataclass(frozen=True)
class RiskCounts:
    """Examples by predicted risk; an example counts once per seed.

    Attributes:
        edges: the risks that part the counts, ascending; a risk that is equal to an edge is above it.
        events: how many examples with the event are between two edges, from the lowest risks on.
        others: how many without the event.
        predicted: the sum of their risks.
    """

    edges: tuple[float, ...]
    events: tuple[int, ...]
    others: tuple[int, ...]
    predicted: tuple[float, ...]


def risk_counts(
    y: Any,
    risks: Floats,
    first: Sequence[float],
    floors: Floors = NO_FLOORS,
    patients: Any = None,
    grid: Sequence[float] = GRID,
) -> RiskCounts | None:
    """Return the counts; None if even those of all examples are below the floor.

    Args:
        y: one label per example, 0 or 1.
        risks: per seed and example, the predicted risk.
        first: the risks that are kept before those of the grid if not all can be.
        floors: how many examples, or patients if these are given, every count needs.
        patients: whose each example is; None if every example is a patient of its own.
        grid: the other risks.
    """
    event = np.asarray(y, float) > 0.5
    weights = share_of_patient(event, patients)
    edges = np.unique([*grid, *first])
    place = np.searchsorted(edges, risks, side="right")
    size, seeds = len(edges) + 1, len(risks)

    def total(rows: NDArray[np.bool_], of: Floats) -> Floats:
        """Return the sums of what these rows have, by place."""
        found: Floats = sum(np.bincount(one[rows], of[rows], size) for one in place) + np.zeros(size)
        return found

    known = np.stack([total(event, weights), total(~event, weights)]) / seeds
    if not floors.allow(*known.sum(1)):
        return None
    coarse = _parted(known, np.flatnonzero(np.isin(edges, first)) + 1, floors)
    kept = list(coarse)
    for low, high in zip([0, *coarse], [*coarse, size], strict=True):
        kept += _parted(known[:, low:high], np.arange(1, high - low), floors, low)
    ends = np.array(sorted(kept), int)
    once = np.ones(len(event))
    sums = [np.add.reduceat(total(rows, once), [0, *ends]) for rows in (event, ~event)]
    predicted = sum(np.bincount(at, one, size) for at, one in zip(place, risks, strict=True)) + np.zeros(size)
    events, others = (tuple(one.astype(int).tolist()) for one in sums)
    sums_of_risks = np.add.reduceat(predicted, [0, *ends])
    return RiskCounts(tuple(edges[ends - 1].tolist()), events, others, tuple(sums_of_risks.tolist()))


def share_of_patient(labels: Any, patients: Any) -> Floats:
    """Return what each row counts: one over the rows of its patient that have the same label.

    Sums of these over some rows are at most the number of different patients among them.

    >>> share_of_patient([1, 1, 0], [4, 4, 4])
    array([0.5, 0.5, 1. ])
    """
    if patients is None:
        return np.ones(len(labels))
    kind = np.unique(labels, return_inverse=True)[1]
    whose = np.unique(patients, return_inverse=True)[1] * (int(kind.max()) + 1) + kind
    found: Floats = 1.0 / np.bincount(whose)[whose]
    return found


def _parted(known: Floats, candidates: NDArray[np.intp], floors: Floors, start: int = 0) -> list[int]:
    """Return the places, counted from `start`, at which counts are parted so that each part is enough."""
    sums = np.concatenate([np.zeros((2, 1)), known.cumsum(1)], 1)
    kept = [0]
    for place in candidates:
        if floors.allow(*(sums[:, place] - sums[:, kept[-1]])):
            kept.append(int(place))
    while len(kept) > 1 and not floors.allow(*(sums[:, -1] - sums[:, kept[-1]])):
        kept.pop()
    return [start + place for place in kept[1:]]
