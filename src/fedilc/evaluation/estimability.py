"""Which scores a set of examples can carry: what informs a score are its rarest outcomes, not its rows.

An area under the ROC curve compares events with non-events: 8 events among 8,000 examples inform it like 8
examples, and so few say little about their own variance. So a score
that rests on fewer than `MIN_COUNT` examples of a kind is not estimable, and below `CAUTION_COUNT` a caution
stands beside it. What a score rests on:

    auroc, auprc, O:E, calibration slope, intercept the rarer of events and non-events; several classes: the
                                                    rarest class that occurs
    all others (means over examples)                the examples
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedilc.algorithms.loss_name import task_of

MIN_COUNT, CAUTION_COUNT = 10, 100
_BY_CLASS = ("auroc", "auprc", "oe_ratio", "calibration_slope", "calibration_intercept")


@dataclass(frozen=True)
class Support:
    """What a score rests on: how many examples of the kind of which there are fewest, and that kind."""

    count: int
    kind: str

    @property
    def reason(self) -> str | None:
        """Return why the score is not estimable; None if it is.

        >>> Support(8, "non-events").reason, Support(0, "events").reason, Support(10, "events").reason
        ('8 non-events, fewer than 10', 'no events', None)
        """
        return self._fewer_than(MIN_COUNT)

    @property
    def caution(self) -> str | None:
        """Return why the score, if it is estimable, is to be read with caution; None if it is not.

        >>> Support(51, "non-events").caution, Support(8, "events").caution, Support(100, "events").caution
        ('51 non-events, fewer than 100', None, None)
        """
        return None if self.reason else self._fewer_than(CAUTION_COUNT)

    def _fewer_than(self, limit: int) -> str | None:
        if self.count >= limit:
            return None
        return f"{_counted(self.count, self.kind)}, fewer than {limit}" if self.count else f"no {self.kind}"


def support(loss: str, y: Any, score: str) -> Support:
    """Return what a score rests on at examples with these labels.

    >>> support("binary", [1] * 8 + [0] * 7992, "auroc")
    Support(count=8, kind='events')
    >>> support("binary", [1] * 8 + [0] * 7992, "log_loss")
    Support(count=8000, kind='examples')
    """
    labels = np.asarray(y)
    if task_of(loss) == "binary" and score in _BY_CLASS:
        events = int((labels > 0.5).sum())
        kinds = (Support(events, "events"), Support(len(labels) - events, "non-events"))
        return min(kinds, key=lambda kind: kind.count)
    if task_of(loss) == "multiclass" and score in _BY_CLASS:
        counts = np.unique(labels, return_counts=True)[1]
        if len(counts) < 2:
            return Support(0, "examples of a second class")
        return Support(int(counts.min()), "examples of the rarest class")
    return Support(len(labels), "examples")


def limits_support(loss: str, y: Any, score: str) -> Support:
    """Return what the interval of a score rests on: of log loss and Brier score, the events too.

    The losses of events and of non-events differ, so that a mean of many examples and few events has a value,
    but its variance is that of the few.

    >>> limits_support("binary", [1] * 8 + [0] * 7992, "log_loss")
    Support(count=8, kind='events')
    """
    by_class = task_of(loss) == "binary" and score in ("log_loss", "brier")
    return support(loss, y, "auroc" if by_class else score)


def size(loss: str, y: Any) -> str:
    """Return how many examples there are, in what informs their scores.

    >>> size("binary", [1] * 8 + [0] * 7992), size("regression", [0.5] * 1200)
    ('8 events and 7,992 non-events', '1,200 examples')
    """
    labels = np.asarray(y)
    if task_of(loss) != "binary":
        return _counted(len(labels), "examples")
    events = int((labels > 0.5).sum())
    return f"{_counted(events, 'events')} and {_counted(len(labels) - events, 'non-events')}"


def _counted(count: int, kind: str) -> str:
    """Return a number of things, whose first word is a plural."""
    return f"{count:,} {kind}" if count != 1 else re.sub(r"^(\S+)s\b", r"1 \1", kind)
