"""The AUROC within sites: over the pairs of an event and a non-event of the same site.

Models for different held-out sites differ, so that their predictions do not rank patients of different sites:
a constant prediction per site would have an AUROC away from 0.5. With w_s the share of site s in all such
pairs and A_s its AUROC,

    AUROC = sum_s w_s A_s,    variance = sum_s w_s^2 (DeLong's variance of A_s),

and the interval is on the logit scale. With several seeds, the value is the mean, the influences of an
example are averaged, and the variance between seeds over their number is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from fedilc.evaluation.estimates import SCALES, area, support
from fedilc.evaluation.intervals import LEVEL, Interval


def auroc_within(sites: Sequence[tuple[Any, Sequence[Any]]]) -> Interval:
    """Return the AUROC within sites with its interval; each site has labels, and outputs per seed.

    >>> labels = [0, 1] * 20
    >>> auroc_within([(labels, [[0.0] * 40]), (labels, [[5.0] * 40])]).value
    0.5
    """
    paired = [(np.asarray(y, float), outputs) for y, outputs in sites if len(np.unique(np.asarray(y))) > 1]
    if not paired:
        return Interval(None, None, None, reason="no site has both events and non-events")
    found = support("binary", np.concatenate([y for y, _ in paired]), "auroc")
    if found.reason is not None:
        return Interval(None, None, None, reason=found.reason)
    pairs = np.array([y.sum() * (len(y) - y.sum()) for y, _ in paired])
    shares = pairs / pairs.sum()
    values, variance = np.zeros(len(paired[0][1])), 0.0
    for share, (y, outputs) in zip(shares, paired, strict=True):
        areas = [area(y, one) for one in outputs]
        known = [one for one in areas if one is not None]
        values += share * np.array([one.value for one in known])
        influence = share * np.mean([one.influence for one in known], axis=0)
        variance += float(influence @ influence)
    if len(values) > 1:
        variance += float(values.var(ddof=1)) / len(values)
    value, scale = float(values.mean()), SCALES["auroc"]
    if not 0 < value < 1:
        return Interval(value, None, None, caution=found.caution)
    reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * variance**0.5 * scale.slope(value)
    low, high = (scale.back(scale.to(value) + sign * reach) for sign in (-1, 1))
    return Interval(value, low, high, caution=found.caution)
