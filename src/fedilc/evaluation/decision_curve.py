"""The decision curve of binary predictions: what it is worth to treat those whose risk reaches a threshold.

At the threshold p, a false positive costs p / (1 - p) of what a true positive gains, and the net benefit is

    net benefit = TP / n - FP / n * p / (1 - p).

Treating nobody has 0; treating everybody has the prevalence minus the share without the event times
p / (1 - p). A model is useful at a threshold if its net benefit is above both.

Net benefit is a mean over examples of y - (1 - y) p / (1 - p) among those treated and 0 among the others,
whose variance gives the interval. If patients have several rows, the deviations of a patient's rows are added
before they are squared, and limits are by Student's t with one degree less than patients. With several seeds,
each example counts with its mean over them, and the variance between seeds over their number is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from fedilc.evaluation.calibration import Floats, sigmoid
from fedilc.evaluation.estimates import NO_FLOORS, Floors, limits_support, per_patient
from fedilc.evaluation.intervals import LEVEL, Interval, t_quantile


def net_benefit(
    y: Any,
    outputs: Sequence[Any],
    thresholds: Sequence[float],
    patients: Any = None,
    floors: Floors = NO_FLOORS,
) -> list[Interval]:
    """Return the net benefit at each threshold with its interval over examples.

    Args:
        y: one label per example, 0 or 1.
        outputs: per seed, one logit per example; an infinite one is treated at every threshold.
        thresholds: risks between 0 and 1, both excluded.
        patients: whose each example is, by any number; None if every example is a patient of its own.
        floors: how many events and non-events limits need.

    >>> [found] = net_benefit([1, 1, 0, 0, 0], [[1.0, -2.0, 1.0, -2.0, -2.0]], [0.25])
    >>> round(found.value, 4)
    0.1333
    """
    gains = _gains(y, outputs, thresholds)
    support = limits_support("binary", y, "log_loss", patients, floors=floors)
    told = support.reason or support.caution
    means = gains.mean(2)
    centred = gains.mean(0) - means.mean(0)[:, None]
    centred /= (gains.shape[2] * max(1, gains.shape[2] - 1)) ** 0.5
    influence = np.stack([per_patient(one, patients) for one in centred])
    variance = (influence**2).sum(1)
    if len(means) > 1:
        variance = variance + means.var(0, ddof=1) / len(means)
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    repeated = patients is not None and influence.shape[1] < gains.shape[2]
    reach = (t_quantile(z, max(1, influence.shape[1] - 1)) if repeated else z) * np.sqrt(variance)
    found = []
    for value, half in zip(means.mean(0).tolist(), reach.tolist(), strict=True):
        low, high = (None, None) if support.reason else (value - half, value + half)
        found.append(Interval(value, low, high, caution=told))
    return found


def treat_all(
    y: Any, thresholds: Sequence[float], patients: Any = None, floors: Floors = NO_FLOORS
) -> list[Interval]:
    """Return the net benefit of treating everybody at each threshold.

    >>> round(treat_all([1, 1, 0, 0, 0], [0.25])[0].value, 4)
    0.2
    """
    return net_benefit(y, [np.full(len(np.asarray(y)), np.inf)], thresholds, patients, floors)


def _gains(y: Any, outputs: Sequence[Any], thresholds: Sequence[float]) -> Floats:
    """Return what each example adds, by seed and threshold."""
    labels, at = np.asarray(y, float), np.asarray(thresholds, float)[:, None]
    worth = labels - (1 - labels) * at / (1 - at)
    risks = [sigmoid(np.array(one, float).reshape(len(labels))) for one in outputs]
    return np.stack([np.where(one >= at, worth, 0.0) for one in risks])
