"""The area under the ROC curve with DeLong's variance, and what it does at a perfect area.

DeLong, DeLong and Clarke-Pearson (1988): the area is a mean over pairs of an event and a non-event, so that
each example has a placement, the share of the other class that it is ordered right against (ties count
half). The variance of the area is that of the mean placements of the two classes. Placements come from
midranks (Sun and Xu 2014), at the cost of sorting.

An influence is how far an example moves an estimate: the sum of its squares over the examples is the
variance, and the sum of products of two models' influences is their covariance, since both are scored on
the same examples.

    area 0 or 1         the classes are parted and DeLong's variance is 0, which no set of finite size can
                        show. On the logit scale the area is moved to (k + 1/2) / (k + 1) or its complement,
                        where k is the number of examples in the rarer class, and its variance is that of
                        Hanley and McNeil (1982).
    equal predictions   the area is 1/2 and DeLong's variance is 0; the variance is that of Hanley and McNeil.
    few events          below 10 events or non-events nothing is estimated (`estimability.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedilc.evaluation.calibration import Floats


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


def area(y: Any, outputs: Any) -> Area | None:
    """Return the area under the ROC curve with its influences; None if one class alone occurs.

    >>> found = area([0, 1, 0, 1, 1], [-2.0, -1.0, 1.0, 3.0, 2.0])
    >>> round(found.value, 4), round(found.variance, 4)
    (0.8333, 0.0556)
    """
    event = np.asarray(y, float) > 0.5
    values = np.asarray(outputs, float).reshape(len(event))
    events, others = int(event.sum()), int((~event).sum())
    if not events or not others:
        return None
    ranks = _midranks(values)
    over = (ranks[event] - _midranks(values[event])) / others
    under = 1 - (ranks[~event] - _midranks(values[~event])) / events
    value = float(over.mean())
    parted = value in (0.0, 1.0)
    rarer = min(events, others)
    smoothed = abs(value - 0.5 / (rarer + 1)) if parted else value
    influence = np.empty(len(event))
    if parted or np.ptp(values) == 0:
        # Orthogonal to every influence of DeLong's, whose sum is 0, and the same for two perfect models.
        influence[:] = np.sqrt(hanley_mcneil(smoothed, events, others) / len(event))
    else:
        influence[event] = _scaled(over - value, events)
        influence[~event] = _scaled(under - value, others)
    return Area(value, smoothed, influence)


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
