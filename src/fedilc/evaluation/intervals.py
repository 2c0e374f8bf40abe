"""Intervals over examples: how far a score could be off because the set is of this size.

The interval of a score on one set is estimate +- z standard errors on the scale where the score is close to
normal (`estimates.py`; the logit of an AUROC, with DeLong's variance), and turned back. Percentiles of a
bootstrap cover too seldom if events are few, because every resample draws the same few again.

Means over sites, and their differences, take percentiles of a bootstrap: examples are drawn with replacement,
all alike (not stratified by label), and a resample in which a score is not defined is left out. If patients
have several examples, patients are drawn in place of examples.

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
from fedilc.evaluation.calibration import Floats
from fedilc.evaluation.estimates import SCALES, Estimate, estimate, limits_support, support
from fedilc.evaluation.metrics import SCORES, scores
from fedilc.seeds import numpy_generator

LEVEL = 0.95
RESAMPLES = 1000
NOT_ESTIMABLE = "not estimable"
_AT_ONCE = 2_000_000  # counts in memory at a time


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


def resampled(
    loss: str, y: Any, outputs: Any, patients: Any = None, *, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Floats]:
    """Return every score: first of the examples themselves, then of each resample; NaN if not estimable.

    The same seed draws the same examples of a set, so that two models' scores are paired. If patients are
    given, they are drawn, each with all its examples.
    """
    labels, given = np.asarray(y), np.asarray(outputs)
    place = np.arange(len(labels)) if patients is None else np.unique(patients, return_inverse=True)[1]
    drawable = int(place.max()) + 1
    generator = numpy_generator(seed, "bootstrap")
    parts = [scores(loss, labels, given)]
    rows = max(1, _AT_ONCE // len(labels))
    for begin in range(0, resamples, rows):
        drawn = generator.integers(0, drawable, (min(rows, resamples - begin), drawable))
        counts = np.stack([np.bincount(one, minlength=drawable)[place] for one in drawn])
        parts.append(scores(loss, labels, given, counts.astype(float)))
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for name, values in found.items():
        if support(loss, labels, name, patients).reason is not None:
            values[:] = np.nan
    return found


def interval_of(values: Floats, level: float = LEVEL) -> Interval:
    """Return the interval of a score from its value and those of its resamples, as `resampled` gives them.

    >>> print(interval_of(np.array([0.5, *np.linspace(0, 1, 101)]), 0.9))
    0.500 [0.050, 0.950]
    """
    value, drawn = values[0], values[1:][np.isfinite(values[1:])]
    if not np.isfinite(value):
        return Interval(None, None, None)
    if not len(drawn):
        return Interval(float(value), None, None)
    low, high = np.percentile(drawn, [50 * (1 - level), 50 * (1 + level)])
    return Interval(float(value), float(low), float(high))


def score_interval(
    loss: str, score: str, y: Any, outputs: Sequence[Any], patients: Any = None, level: float = LEVEL
) -> Interval:
    """Return a score of the models of one or more seeds on a set of examples, with its interval.

    The value is the mean over seeds. Log loss and Brier score have no interval if there are so few events or
    non-events that their variance is not known.

    Args:
        loss: its name, such as "binary"; a score depends on its task alone.
        score: its name.
        y: one label per example.
        outputs: per seed, one logit or number per example, or one logit per class.
        patients: whose each example is, by any number; None if every example is a patient of its own.
        level: how often the limits hold the score of the population that the examples are drawn from.

    >>> print(score_interval("binary", "auroc", [0, 1] * 50, [[0.1, 0.9, 0.6, 0.4] * 25]))
    0.750 [0.639, 0.836] (caution: 50 events, fewer than 100)
    """
    found = support(loss, y, score, patients)
    values = [float(scores(loss, y, one)[score][0]) for one in outputs]
    if found.reason is not None or not np.isfinite(values).all():
        return Interval(None, None, None, reason=found.reason)
    value = float(np.mean(values))
    of_limits = limits_support(loss, y, score, patients)
    told = Interval(value, None, None, caution=of_limits.caution or of_limits.reason)
    one = None if of_limits.reason is not None else estimate(loss, score, y, outputs, patients)
    if one is None:
        return told
    repeated = patients is not None and len(one.influence) < len(y)
    low, high = _limits(score, one, value, level, len(one.influence) - 1 if repeated else None)
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
