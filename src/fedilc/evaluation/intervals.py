"""Bootstrap intervals over examples: how far a score could be off because the set is of this size.

Examples are drawn with replacement, all alike (not stratified by label): how many positives there are is part
of what is uncertain. A resample in which a score is not defined (one class alone has no area under the ROC
curve) is left out of that score's interval. A score that rests on too few examples of a kind has neither
value nor interval (`estimability.py`). Limits are percentiles, as in `scipy.stats.bootstrap` with
`method="percentile"`. The intervals say nothing about other sites, nor about other seeds of the training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedilc.evaluation.calibration import Floats
from fedilc.evaluation.estimability import Support, support
from fedilc.evaluation.scores import scores
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

    def resting_on(self, found: Support) -> Interval:
        """Return the interval with what its examples say about it: a reason, or a caution."""
        if self.value is None:
            return replace(self, reason=found.reason)
        return replace(self, caution=found.caution)


def resampled(
    loss: str, y: Any, outputs: Any, *, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Floats]:
    """Return every score: first of the examples themselves, then of each resample; NaN if not estimable.

    The same seed draws the same examples of a set, so that two models' scores are paired.
    """
    labels, given = np.asarray(y), np.asarray(outputs)
    generator = numpy_generator(seed, "bootstrap")
    parts = [scores(loss, labels, given)]
    rows = max(1, _AT_ONCE // len(labels))
    for begin in range(0, resamples, rows):
        drawn = generator.integers(0, len(labels), (min(rows, resamples - begin), len(labels)))
        counts = np.stack([np.bincount(one, minlength=len(labels)) for one in drawn])
        parts.append(scores(loss, labels, given, counts.astype(float)))
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for name, values in found.items():
        if support(loss, labels, name).reason is not None:
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


def bootstrap_intervals(
    loss: str,
    y: Any,
    outputs: Any,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Mapping[str, Interval]:
    """Return every score of a model on a set of examples with its bootstrap interval.

    Args:
        loss: "binary", "multiclass", "regression" or "huber".
        y: one label per example.
        outputs: the model's outputs: one logit or number per example, or one logit per class.
        seed: of the resamples.
        resamples: how many.
        level: the share of resamples inside the limits.

    >>> found = bootstrap_intervals("binary", [0, 1, 0, 1] * 5, [-2.0, 1.0, -1.0, -1.5] * 5, resamples=200)
    >>> found["auroc"].value
    0.75
    """
    found = resampled(loss, y, outputs, seed=seed, resamples=resamples)
    return {
        name: interval_of(values, level).resting_on(support(loss, y, name)) for name, values in found.items()
    }
