"""Intervals over examples: how far a score could be off because the set is of this size.

The interval of a score on one set is estimate +- z standard errors on the scale where the score is close to
normal (`estimates.py`; the logit of an AUROC, with DeLong's variance), and turned back. Percentiles of a
bootstrap cover too seldom if events are few, because every resample draws the same few again.

Means over sites, and differences of two methods, follow from the same estimates: sites are independent, and
two methods at one site share its examples, so that their influences are subtracted before they are squared.

A score that rests on too few examples of a kind has neither value nor interval (`estimates.py`). The
intervals say nothing about other sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from fedilc.algorithms.loss_registry import task_of
from fedilc.evaluation.estimates import IDENTITY, SCALES, Estimate, Estimates, estimates
from fedilc.evaluation.metrics import SCORES

LEVEL = 0.95
NOT_ESTIMABLE = "not estimable"
CAUTION_MARK = "†"  # beside a score that rests on few events


@dataclass(frozen=True)
class Interval:
    """A score with its limits; None if it is not defined.

    Attributes:
        value: the score.
        low: the lower limit.
        high: the upper limit.
        reason: why the score is not estimable, if it is not.
        caution: why it is to be read with caution, if so.
    """

    value: float | None
    low: float | None
    high: float | None
    reason: str | None = None
    caution: str | None = None

    def __str__(self) -> str:
        """Return it as text.

        >>> str(Interval(0.8123, 0.75, 0.87)), str(Interval(None, None, None))
        ('0.812 [0.750, 0.870]', '-')
        >>> print(Interval(None, None, None, reason="8 events, fewer than 10"))
        not estimable (8 events, fewer than 10)
        >>> print(Interval(0.8123, 0.75, 0.87, caution="51 events, fewer than 100"))
        0.812 [0.750, 0.870] (caution: 51 events, fewer than 100)
        """
        if self.value is None:
            return "-" if self.reason is None else f"{NOT_ESTIMABLE} ({self.reason})"
        limits = "" if self.low is None or self.high is None else f" [{self.low:.3f}, {self.high:.3f}]"
        caution = "" if self.caution is None else f" (caution: {self.caution})"
        return f"{self.value:.3f}{limits}{caution}"


def mean_interval(found: Sequence[Estimate], score: str | None = None, level: float = LEVEL) -> Interval:
    """Return the mean of sites' estimates, each counting equally, with its interval over their examples.

    The sites' examples are independent, so that the variances of their estimates add up. Limits are on the
    scale where the score is close to normal, unless its mean is at an end of its range.

    Args:
        found: one estimate per site, on the score's own scale.
        score: its name; None is a difference of two methods.
        level: how often the limits hold the mean of these sites' populations.

    >>> sites = [Estimate(0.8, np.array([0.03])), Estimate(0.9, np.array([0.04]))]
    >>> print(mean_interval(sites, "auroc"), mean_interval(sites))
    0.850 [0.794, 0.893] 0.850 [0.801, 0.899]
    """
    if not found or not all(np.isfinite(one.value) for one in found):
        return Interval(None, None, None)
    value = float(np.mean([one.value for one in found]))
    reach = NormalDist().inv_cdf((1 + level) / 2) * mean_error(found)
    scale = IDENTITY if score is None else SCALES[score]
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = scale.to(value)
    if not np.isfinite(middle):
        return Interval(value, max(value - reach, 0.0), min(value + reach, 1.0))
    reach *= abs(scale.slope(value))
    low, high = sorted((scale.back(middle - reach), scale.back(middle + reach)))
    return Interval(value, low, high)


def mean_error(found: Sequence[Estimate]) -> float:
    """Return the standard error, over examples and seeds, of the mean of sites' estimates.

    >>> round(mean_error([Estimate(0.8, np.array([0.03])), Estimate(0.9, np.array([0.04]))]), 4)
    0.025
    """
    return float(np.sqrt(sum(one.variance for one in found))) / len(found)


def score_interval(
    loss: str,
    score: str,
    y: Any,
    outputs: Sequence[Any],
    patients: Any = None,
    models: Any = None,
    level: float = LEVEL,
) -> Interval:
    """Return a score of the models of one or more seeds on a set of examples, with its interval.

    The value is the mean over seeds. Log loss and Brier score have no interval if there are so few events or
    non-events that their variance is not known. Arguments are those of `estimates`; `level` is how often the
    limits hold the score of the population that the examples are drawn from.

    >>> print(score_interval("binary", "auroc", [0, 1] * 50, [[0.1, 0.9, 0.6, 0.4] * 25]))
    0.750 [0.639, 0.836] (caution: 50 events, fewer than 100)
    """
    return interval_of(score, estimates(loss, score, y, outputs, patients, models), len(y), level)


def interval_of(score: str, found: Estimates, rows: int, level: float = LEVEL) -> Interval:
    """Return a score with its interval; `rows` is the number of examples that it was estimated on."""
    if found.own is None:
        return Interval(None, None, None, reason=found.support.reason)
    told = Interval(found.own.value, None, None, caution=found.limits.caution or found.limits.reason)
    one = found.analysis
    if one is None:
        return told
    repeated = len(one.influence) < rows  # one influence per patient
    low, high = _limits(score, one, found.own.value, level, len(one.influence) - 1 if repeated else None)
    return replace(told, low=low, high=high)


def score_intervals(loss: str, y: Any, outputs: Any, patients: Any = None) -> dict[str, Interval]:
    """Return every score of one model on a set of examples with its interval, as `score_interval` does."""
    return {score: score_interval(loss, score, y, [outputs], patients) for score in SCORES[task_of(loss)]}


def _limits(
    score: str, found: Estimate, value: float, level: float, freedom: int | None
) -> tuple[float, float]:
    """Return the limits, on the score's own scale, by the normal distribution on that of the estimate.

    With degrees of freedom, by Student's t: the variance of sums of few patients is itself uncertain.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    reach = (z if freedom is None else t_quantile(z, freedom)) * found.variance**0.5
    low, high = sorted(map(SCALES[score].back, (found.value - reach, found.value + reach)))
    return min(low, value), max(high, value)


def t_quantile(z: float, freedom: int) -> float:
    """Return the quantile of Student's t at the probability of the normal quantile z.

    It is the expansion in 1 / freedom, right to 0.001 from 9 degrees of freedom on, up to z = 2; scipy is not
    needed to write a model card.

    >>> round(t_quantile(1.959964, 9), 3), round(t_quantile(1.959964, 60), 3)
    (2.262, 2.0)
    """
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
