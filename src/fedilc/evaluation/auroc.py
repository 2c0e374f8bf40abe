"""The area under the ROC curve with what each example adds to it (DeLong's variance)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedilc.evaluation.calibration import Floats

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Area:
    """An area under the ROC curve.

    Attributes:
        value: the area itself.
        smoothed: the same unless it is 0 or 1, which have no logit.
        influence: one number per example, on the scale of the area.
    """

    value: float
    smoothed: float
    influence: Floats

    @property
    def variance(self) -> float:
        """Return DeLong's variance, or the one that takes its place if that is 0."""
        return float(self.influence @ self.influence)


def area(y: Any, outputs: Any, models: Any = None) -> Area | None:
    """Return the area under the ROC curve with its influences; None if one class alone occurs.

    Args:
        y: one label per example.
        outputs: one number per example.
        models: which model predicts each example, by any number: pairs of one model count; None if one
            predicts all.

    >>> found = area([0, 1, 0, 1, 1], [-2.0, -1.0, 1.0, 3.0, 2.0])
    >>> round(found.value, 4), round(found.variance, 4)
    (0.8333, 0.0556)
    """
    event = np.asarray(y, float) > 0.5
    values = np.asarray(outputs, float).reshape(len(event))
    if models is not None:
        return _within(event, values, np.unique(models, return_inverse=True)[1])
    events, others = int(event.sum()), int((~event).sum())
    if not events or not others:
        return None
    over, under = _shares_of_pairs(event, values)
    value = float(over.mean())
    influence = np.empty(len(event))
    influence[event] = _scaled(over - value, events)
    influence[~event] = _scaled(under - value, others)
    return _area(value, influence, events, others, alike=bool(np.ptp(values) == 0))


def _within(event: Bools, values: Floats, models: NDArray[np.intp]) -> Area | None:
    """Return the area over pairs of one model.

    With w_g the share of model g in all such pairs and A_g its area, it is sum_g w_g A_g, and its variance is
    sum_g w_g^2 (DeLong's variance of A_g), since models predict different examples.
    """
    groups = [np.flatnonzero(models == number) for number in range(models.max() + 1)]
    groups = [rows for rows in groups if 0 < event[rows].sum() < len(rows)]
    if not groups:
        return None
    counts = np.array([(event[rows].sum(), (~event[rows]).sum()) for rows in groups])
    shares = counts.prod(1) / counts.prod(1).sum()
    parts = [_shares_of_pairs(event[rows], values[rows]) for rows in groups]
    areas = np.array([over.mean() for over, _ in parts])
    value = float(shares @ areas)
    influence = np.zeros(len(event))
    for rows, share, own, (over, under) in zip(groups, shares, areas, parts, strict=True):
        for members, found in ((rows[event[rows]], over), (rows[~event[rows]], under)):
            # A single event or non-event has no deviation from its own mean.
            influence[members] = share * _scaled(found - (own if len(found) > 1 else value), len(found))
    alike = all(np.ptp(values[rows]) == 0 for rows in groups)
    return _area(value, influence, *map(int, counts.sum(0)), alike=alike)


def _shares_of_pairs(event: Bools, values: Floats) -> tuple[Floats, Floats]:
    """Return per event the share of non-events below it, and per non-event that of events above it."""
    events = int(event.sum())
    ranks = _midranks(values)
    over = (ranks[event] - _midranks(values[event])) / (len(event) - events)
    return over, 1 - (ranks[~event] - _midranks(values[~event])) / events


def _area(value: float, influence: Floats, events: int, others: int, *, alike: bool) -> Area:
    """Return an area; of 0, 1 or equal predictions, with the variance that takes the place of DeLong's, 0."""
    parted = value in (0.0, 1.0)
    rarer = min(events, others)
    smoothed = abs(value - 0.5 / (rarer + 1)) if parted else value
    if parted or alike:
        # Orthogonal to every influence of DeLong's, whose sum is 0, and the same for two perfect models.
        influence = np.full(len(influence), np.sqrt(hanley_mcneil(smoothed, events, others) / len(influence)))
    return Area(value, smoothed, influence)


def one_model(y: Any, models: Any) -> Bools:
    """Return the examples that have one of another label predicted by the same model.

    >>> one_model([0, 1, 1, 1], [7, 7, 7, 8])
    array([ True,  True,  True, False])
    """
    labels, numbers = np.asarray(y), np.unique(models, return_inverse=True)[1]
    several = [len(np.unique(labels[numbers == number])) > 1 for number in range(numbers.max() + 1)]
    found: Bools = np.array(several)[numbers]
    return found


def _midranks(values: Floats) -> Floats:
    """Return the places of the values in their order, from 1; equal ones share the mean of theirs.

    >>> _midranks(np.array([2.0, 1.0, 2.0, 5.0]))
    array([2.5, 1. , 2.5, 4. ])
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: Floats = (counts.cumsum() - (counts - 1) / 2)[place]
    return found


def _scaled(centred: Floats, count: int) -> Floats:
    """Return what sums, squared, to the variance of a mean; a single example has none to show."""
    found: Floats = centred / np.sqrt(count * max(1, count - 1))
    return found


def hanley_mcneil(value: float, events: int, others: int) -> float:
    """Return the variance of an area of this size by Hanley and McNeil's formula.

    >>> round(hanley_mcneil(0.8, 20, 30), 6)
    0.004548
    """
    first, second = value / (2 - value), 2 * value**2 / (1 + value)
    spread = (events - 1) * (first - value**2) + (others - 1) * (second - value**2)
    return (value * (1 - value) + spread) / (events * others)
