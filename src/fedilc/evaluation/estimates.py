"""A score of a model at one site as an estimate with its variance, and which scores a site can carry.

What informs a score are its rarest outcomes, not its rows. The area under the ROC curve has DeLong's
variance on the logit scale (`auroc.py`). If different models predict different examples (of several sites, or
of several folds), predictions of different models have no common order: the area counts pairs of one model.

If patients have several rows, patients are drawn, not rows: what informs a score are patients with an event
and patients without, and the influences of a patient's rows are added before they are squared. For the area
this is Obuchowski's variance of clustered data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedilc.algorithms.loss_registry import task_of
from fedilc.evaluation.auroc import area, one_model
from fedilc.evaluation.calibration import Floats, calibration_intercept, calibration_slope, sigmoid

MIN_COUNT, CAUTION_COUNT = 10, 100
_ROUNDING = 1e-6  # of sums of shares of patients
_BY_CLASS = (
    *("auroc", "auprc", "log_loss_refitted", "oe_ratio", "calibration_slope", "calibration_intercept"),
)


@dataclass(frozen=True)
class Floors:
    """How few patients may still be told of; the owner of the data decides.

    Attributes:
        min_events: how many examples of the rarest kind a score needs.
        min_cell: how many examples of each class every count needs that is told; 1 is no floor.
    """

    min_events: int = MIN_COUNT
    min_cell: int = 1

    def least(self) -> int:
        """Return how many examples of the rarest kind a score needs."""
        return max(self.min_events, self.min_cell)

    def allow(self, events: float, others: float) -> bool:
        """Return whether these two counts may be told together.

        With a floor, a count of 0 is too small too: it says of everybody whom the other one counts to which
        class they belong, and two of them where the predictions of single patients begin and end.

        >>> floors = Floors(min_cell=10)
        >>> floors.allow(10, 12), floors.allow(0, 12), floors.allow(0, 0), Floors().allow(0, 1)
        (True, False, False, True)
        """
        return self.min_cell == 1 or min(events, others) > self.min_cell - _ROUNDING


NO_FLOORS = Floors()


@dataclass(frozen=True)
class Support:
    """What a score rests on: how many examples of the kind of which there are fewest, and that kind.

    Attributes:
        count: how many.
        kind: of what, such as "events".
        floors: how many a score needs, and from which count on it is told.
    """

    count: int
    kind: str
    floors: Floors = NO_FLOORS

    @property
    def reason(self) -> str | None:
        """Return why the score is not estimable; None if it is.

        >>> Support(8, "non-events").reason, Support(0, "events").reason, Support(10, "events").reason
        ('8 non-events, fewer than 10', 'no events', None)
        >>> Support(8, "events", Floors(min_cell=5)).reason, Support(3, "events", Floors(min_cell=5)).reason
        ('8 events, fewer than 10', 'fewer than 10 events')
        """
        return self._fewer_than(self.floors.least())

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
        if self.count < self.floors.min_cell > 1:
            return f"fewer than {limit} {self.kind}"
        return f"{_counted(self.count, self.kind)}, fewer than {limit}" if self.count else f"no {self.kind}"


def support(
    loss: str,
    y: Any,
    score: str,
    patients: Any = None,
    models: Any = None,
    floors: Floors = NO_FLOORS,
) -> Support:
    """Return what a score rests on at examples with these labels, or at patients if these are given.

    `models` says, by any number, which model predicts each example; None if one model predicts all.

    >>> support("binary", [1] * 8 + [0] * 7992, "auroc").count
    8
    >>> found = support("binary", [1, 1, 1, 0, 0, 0], "auroc", [5, 5, 6, 6, 7, 8])
    >>> found.count, found.kind
    (2, 'patients with events')
    """

    def of_kind(count: int, kind: str) -> Support:
        return Support(count, kind, floors)

    labels = np.asarray(y)
    if models is not None and score == "auroc":
        kept = one_model(labels, models)
        if not kept.any():
            return of_kind(0, "pairs of an event and a non-event that one model predicts")
        labels, patients = labels[kept], None if patients is None else np.asarray(patients)[kept]
    of = "patients with " if patients is not None else ""
    if task_of(loss) == "binary" and score in _BY_CLASS:
        event = labels > 0.5
        named = ((event, "events"), (~event, "non-events"))
        kinds = [of_kind(_distinct(rows, patients), f"{of}{kind}") for rows, kind in named]
        return min(kinds, key=lambda kind: kind.count)
    if task_of(loss) == "multiclass" and score in _BY_CLASS:
        counts = [_distinct(labels == label, patients) for label in np.unique(labels)]
        if len(counts) < 2:
            return of_kind(0, f"{of}examples of a second class")
        return of_kind(min(counts), f"{of}examples of the rarest class")
    every = np.ones(len(labels), bool)
    return of_kind(_distinct(every, patients), "examples" if patients is None else "patients")


def _distinct(rows: NDArray[np.bool_], patients: Any) -> int:
    """Return how many of the examples, or of the patients that they are from, there are in these rows."""
    return int(rows.sum()) if patients is None else len(np.unique(np.asarray(patients)[rows]))


def limits_support(
    loss: str,
    y: Any,
    score: str,
    patients: Any = None,
    models: Any = None,
    floors: Floors = NO_FLOORS,
) -> Support:
    """Return what the interval of a score rests on: of log loss and Brier score, the events too.

    The losses of events and of non-events differ, so that a mean of many examples and few events has a value,
    but its variance is that of the few.

    >>> limits_support("binary", [1] * 8 + [0] * 7992, "log_loss").reason
    '8 events, fewer than 10'
    """
    by_class = task_of(loss) == "binary" and score in ("log_loss", "brier")
    return support(loss, y, "log_loss_refitted" if by_class else score, patients, models, floors)


def size(loss: str, y: Any, patients: Any = None) -> str:
    """Return how many examples there are, in what informs their scores.

    >>> size("binary", [1] * 8 + [0] * 7992), size("regression", [0.5] * 1200)
    ('8 events and 7,992 non-events', '1,200 examples')
    >>> size("binary", [1, 1, 0], [3, 3, 4])
    '2 events and 1 non-event of 2 patients'
    """
    labels = np.asarray(y)
    of = "" if patients is None else f" of {_counted(len(np.unique(patients)), 'patients')}"
    return size_of(len(labels), int((labels > 0.5).sum()) if task_of(loss) == "binary" else None) + of


def size_of(examples: int, events: int | None) -> str:
    """Return how many examples there are, and how many of them are events if that is known.

    >>> size_of(8000, 8), size_of(1200, None)
    ('8 events and 7,992 non-events', '1,200 examples')
    """
    if events is None:
        return _counted(examples, "examples")
    return f"{_counted(events, 'events')} and {_counted(examples - events, 'non-events')}"


def _counted(count: int, kind: str) -> str:
    """Return a number of things, whose first word is a plural."""
    return f"{count:,} {kind}" if count != 1 else re.sub(r"^(\S+)s\b", r"1 \1", kind)


@dataclass(frozen=True)
class Estimate:
    """A score with its influences, and the variance that is not of the examples.

    Attributes:
        value: the score, on the scale of the module's table or on its own.
        influence: one number per example, or per patient if patients have several, on the same scale.
        between_seeds: the variance between seeds over their number.
        smoothed: the score if it is not at an end of its range, or else near that end.
    """

    value: float
    influence: Floats
    between_seeds: float = 0.0
    smoothed: float | None = None

    @classmethod
    def of(cls, value: float, variance: float) -> Estimate:
        """Return an estimate whose variance alone is known, and not what each example adds to it."""
        return cls(value, np.sqrt([variance]))

    @property
    def variance(self) -> float:
        """Return the variance of the value."""
        return float(self.influence @ self.influence) + self.between_seeds


@dataclass(frozen=True)
class Scale:
    """A scale on which a score is close to normal: to it, back from it, and its slope at a score."""

    to: Callable[[float], float]
    back: Callable[[float], float]
    slope: Callable[[float], float]


def _expit(x: float) -> float:
    return float(np.exp(-np.logaddexp(0.0, -x)))


IDENTITY = Scale(float, float, lambda _: 1.0)
_LOGIT = Scale(lambda a: float(np.log(a) - np.log1p(-a)), _expit, lambda a: 1 / (a * (1 - a)))
_LOG = Scale(lambda a: float(np.log(a)), lambda x: float(np.exp(x)), lambda a: 1 / a)
_LOG_UP_TO_ONE = Scale(lambda a: float(np.log(a)), lambda x: float(np.exp(min(x, 0.0))), lambda a: 1 / a)
_LOG_REST = Scale(lambda a: float(np.log1p(-a)), lambda x: float(-np.expm1(x)), lambda a: -1 / (1 - a))
SCALES: Mapping[str, Scale] = {
    **dict.fromkeys(("auroc", "auprc", "accuracy"), _LOGIT),
    **dict.fromkeys(("log_loss", "log_loss_refitted", "rmse", "mae", "oe_ratio"), _LOG),
    "brier": _LOG_UP_TO_ONE,
    **dict.fromkeys(("calibration_slope", "calibration_intercept"), IDENTITY),
    "r2": _LOG_REST,
}


@dataclass(frozen=True)
class Estimates:
    """One score of the models of one or more seeds on one set of examples.

    Attributes:
        support: what it rests on.
        limits: what its interval rests on.
        seeds: its value by seed; NaN if it is not estimable.
        own: the mean over seeds on the score's own scale, for means over sites and differences; None if it is
            not estimable. Log loss and Brier score of few events are among them: one site's interval must
            not rest on its few events, but a mean over sites does so only in part.
        analysis: the same on the scale of `SCALES`, for limits and random effects; None if there are too few
            examples for its variance.
    """

    support: Support
    limits: Support
    seeds: list[float]
    own: Estimate | None = None
    analysis: Estimate | None = None


def estimates(
    loss: str,
    score: str,
    y: Any,
    outputs: Sequence[Any],
    patients: Any = None,
    models: Any = None,
    floors: Floors = NO_FLOORS,
) -> Estimates:
    """Return a score of the models of one or more seeds on a set of examples, on both scales.

    Args:
        loss: its name, such as "binary"; a score depends on its task alone.
        score: its name, as in the module's table.
        y: one label per example.
        outputs: per seed, one logit or number per example, or one logit per class.
        patients: whose each example is, by any number; None if every example is a patient of its own.
        models: which model predicts each example, by any number; None if one predicts all.
        floors: how many examples a score needs.

    >>> found = estimates("binary", "auroc", [0, 1] * 20, [[0.1, 0.9, 0.6, 0.4] * 10])
    >>> found.own.value, round(found.analysis.value, 4), round(found.analysis.variance ** 0.5, 4)
    (0.75, 1.0986, 0.4326)
    """
    about = [of(loss, y, score, patients, models, floors) for of in (support, limits_support)]
    found = None if about[0].reason is not None else _by_seed(loss, score, y, outputs, models)
    if found is None:
        return Estimates(about[0], about[1], [float("nan")] * len(outputs))
    own = _over_seeds(found, patients)
    enough = about[1].reason is None
    analysis = _over_seeds([_transformed(one, SCALES[score]) for one in found], patients) if enough else None
    return Estimates(about[0], about[1], [one.value for one in found], own, analysis)


def estimate(
    loss: str,
    score: str,
    y: Any,
    outputs: Sequence[Any],
    patients: Any = None,
    models: Any = None,
    *,
    own_scale: bool = False,
) -> Estimate | None:
    """Return a score with its variance on the scale of the module's table; None if it is not estimable.

    `own_scale` is whether to stay on the score's own scale; the other arguments are those of `estimates`.

    >>> found = estimate("binary", "auroc", [0, 1] * 20, [[0.1, 0.9, 0.6, 0.4] * 10])
    >>> round(found.value, 4), round(found.variance ** 0.5, 4)
    (1.0986, 0.4326)
    """
    found = estimates(loss, score, y, outputs, patients, models)
    if found.limits.reason is not None:
        return None
    return found.own if own_scale else found.analysis


def own_estimate(
    loss: str, score: str, y: Any, outputs: Sequence[Any], patients: Any = None, models: Any = None
) -> Estimate:
    """Return a score on its own scale; NaN if it is not estimable.

    >>> own_estimate("binary", "brier", [0, 1] * 5, [[-1.0, 1.0] * 5]).value.__round__(4)
    0.0723
    """
    found = estimates(loss, score, y, outputs, patients, models).own
    return Estimate(float("nan"), np.zeros(0)) if found is None else found


def _by_seed(loss: str, score: str, y: Any, outputs: Sequence[Any], models: Any) -> list[Estimate] | None:
    """Return a score by seed on its own scale; None if a seed has none."""
    labels = np.asarray(y, float)
    found = []
    for given in outputs:
        drawn = np.asarray(given, float)
        drawn = drawn if task_of(loss) == "multiclass" else drawn.reshape(len(labels))
        one = _auroc(labels, drawn, models) if score == "auroc" else _ESTIMATORS[score](labels, drawn)
        if one is None or not np.isfinite(one.value):
            return None
        found.append(one)
    return found


def _over_seeds(found: Sequence[Estimate], patients: Any) -> Estimate | None:
    """Return the mean over seeds; None if one is infinite on this scale."""
    values = [one.value for one in found]
    if not np.isfinite(values).all():
        return None
    between = float(np.var(values, ddof=1)) / len(values) if len(values) > 1 else 0.0
    influence: Floats = np.mean([one.influence for one in found], axis=0)
    return Estimate(float(np.mean(values)), per_patient(influence, patients), between)


def per_patient(influence: Floats, patients: Any) -> Floats:
    """Return one influence per patient: the sum over the patient's examples.

    The usual factor G / (G - 1) of G patients takes the place of n / (n - 1) of n examples.
    """
    if patients is None:
        return influence
    place = np.unique(patients, return_inverse=True)[1]
    sums, n = np.bincount(place, influence), len(influence)
    found: Floats = sums * np.sqrt(len(sums) / max(1, len(sums) - 1) * max(1, n - 1) / n)
    return found


def difference(ours: Estimate, theirs: Estimate) -> Estimate:
    """Return the difference of two models' estimates on the same examples, whose covariance counts."""
    between = ours.between_seeds + theirs.between_seeds
    return Estimate(ours.value - theirs.value, ours.influence - theirs.influence, between)


def _transformed(found: Estimate, scale: Scale) -> Estimate:
    value = found.value if found.smoothed is None else found.smoothed
    with np.errstate(divide="ignore", invalid="ignore"):
        return Estimate(scale.to(value), found.influence * scale.slope(value) if value else found.influence)


def _share(value: float, influence: Floats, informs: NDArray[np.bool_]) -> Estimate:
    """Return a share of the examples that inform it, moved from 0 and 1, where it would have no variance."""
    if 0.0 < value < 1.0:
        return Estimate(value, influence)
    count = int(informs.sum())
    smoothed = abs(value - 0.5 / (count + 1))
    spread = np.sqrt(smoothed * (1 - smoothed) / (count + 1) / count)
    return Estimate(value, np.where(informs, spread, 0.0), smoothed=smoothed)


def _mean(values: Floats) -> Estimate:
    n = len(values)
    mean = float(values.mean())
    return Estimate(mean, (values - mean) / np.sqrt(n * max(1, n - 1)))


def _auroc(y: Floats, outputs: Floats, models: Any) -> Estimate | None:
    if outputs.ndim == 1:
        found = [area(y, outputs, models)]
    else:
        classes = y.astype(int)
        found = [
            area(
                classes == c,
                outputs[:, c] - np.logaddexp.reduce(np.delete(outputs, c, axis=1), axis=1),
                models,
            )
            for c in np.unique(classes)
        ]
    usable = [one for one in found if one is not None]
    if not usable:
        return None
    influence: Floats = np.mean([one.influence for one in usable], axis=0)
    smoothed = float(np.mean([one.smoothed for one in usable]))
    return Estimate(float(np.mean([one.value for one in usable])), influence, smoothed=smoothed)


def _auprc(y: Floats, outputs: Floats) -> Estimate | None:
    """Return the average precision; its influences are its derivatives by the weights of the examples."""
    event = y > 0.5
    events = int(event.sum())
    if not 0 < events < len(y):
        return None
    values, place = np.unique(-outputs, return_inverse=True)
    hits = np.bincount(place, event, len(values))
    taken = np.bincount(place, minlength=len(values)).cumsum()
    found = hits.cumsum()
    precision = found / taken
    value = float(hits @ precision / events)
    below = (hits / taken)[::-1].cumsum()[::-1]  # sums over the events at this place or after it
    missed = (hits * precision / taken)[::-1].cumsum()[::-1]
    moved = np.where(event, precision[place] - value + below[place], 0.0) - missed[place]
    influence = moved / events
    variance = max(float(influence @ influence), value * (1 - value) / events)
    return _share(value, with_variance(value, influence, variance).influence, event)


def _accuracy(y: Floats, outputs: Floats) -> Estimate:
    right = (outputs > 0) == (y > 0.5) if outputs.ndim == 1 else outputs.argmax(1) == y
    found = _mean(right.astype(float))
    return _share(found.value, found.influence, np.ones(len(y), bool))


def _log_loss(y: Floats, outputs: Floats) -> Estimate:
    if outputs.ndim == 1:
        return _mean(np.logaddexp(0.0, (1 - 2 * y) * outputs))
    return _mean(np.logaddexp.reduce(outputs, axis=1) - outputs[np.arange(len(y)), y.astype(int)])


def _log_loss_refitted(y: Floats, logits: Floats) -> Estimate | None:
    """Return the log loss with the intercept of least loss; being the least, it adds no influence."""
    intercept = float(calibration_intercept(y, logits)[0])
    return _log_loss(y, intercept + logits) if np.isfinite(intercept) else None


def _rmse(y: Floats, outputs: Floats) -> Estimate:
    squares = _mean((outputs - y) ** 2)
    root = float(np.sqrt(squares.value))
    return Estimate(root, squares.influence / (2 * root) if root else squares.influence)


def _r2(y: Floats, outputs: Floats) -> Estimate | None:
    errors, spread = (outputs - y) ** 2, (y - y.mean()) ** 2
    if not spread.any():
        return None
    rest = float(errors.sum() / spread.sum())
    return Estimate(1 - rest, (rest * spread - errors) / spread.sum())


def _oe_ratio(y: Floats, logits: Floats) -> Estimate | None:
    ratio = float(y.sum() / sigmoid(logits).sum())
    return Estimate(ratio, (y - y.mean()) * ratio / y.sum()) if y.any() else None


def _slope(y: Floats, logits: Floats) -> Estimate | None:
    value = float(calibration_slope(y, logits)[0])
    if not np.isfinite(value) or np.ptp(logits) == 0:
        return None
    risks = sigmoid(float(calibration_intercept(y, value * logits)[0]) + value * logits)
    weights = risks * (1 - risks)
    centred = logits - weights @ logits / weights.sum()
    return with_variance(value, centred * (y - risks), 1 / float(weights @ centred**2))


def _intercept(y: Floats, logits: Floats) -> Estimate | None:
    value = float(calibration_intercept(y, logits)[0])
    if not np.isfinite(value):
        return None
    risks = sigmoid(value + logits)
    return with_variance(value, y - risks, 1 / float((risks * (1 - risks)).sum()))


def with_variance(value: float, direction: Floats, variance: float) -> Estimate:
    """Return an estimate whose examples pull in these proportions, and whose variance is the model's."""
    length = float(np.sqrt(direction @ direction))
    return Estimate(value, direction * (np.sqrt(variance) / length if length else 0.0))


_ESTIMATORS: Mapping[str, Callable[[Floats, Floats], Estimate | None]] = {
    "auprc": _auprc,
    "accuracy": _accuracy,
    "log_loss": _log_loss,
    "log_loss_refitted": _log_loss_refitted,
    "brier": lambda y, logits: _mean((sigmoid(logits) - y) ** 2),
    "rmse": _rmse,
    "mae": lambda y, outputs: _mean(np.abs(outputs - y)),
    "r2": _r2,
    "oe_ratio": _oe_ratio,
    "calibration_slope": _slope,
    "calibration_intercept": _intercept,
}
