"""Recalibration at a new site: a line through a model's outputs z, fitted to the labels of that site.

    kind          two classes         several classes (a of the first is 0)    quantities
    intercept     sigmoid(a + z)      softmax(a_k + z_k)                       a + z
    slope         sigmoid(a + b z)    softmax(a_k + b z_k)                     a + b z

The fit is by maximum likelihood, for quantities by least squares. Nothing is shrunk. In place of that, a line
is refused if it rests on fewer than 10 events or non-events (several classes: 10 examples of each; patients
with them, if patients have several rows), if no finite slope fits best, and if the slope is not above 0.

The scores of a line on the rows that it was fitted to are apparent: too good. `Recalibrated` therefore has
cross-validated scores beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedilc.algorithms.loss_registry import LossName, Task, task_of
from fedilc.data.silo import folds_of
from fedilc.errors import DataError
from fedilc.evaluation.calibration import Floats, calibration_intercept, calibration_line
from fedilc.evaluation.estimates import MIN_COUNT, per_patient, with_variance
from fedilc.evaluation.intervals import LEVEL, Interval, score_intervals, t_quantile

Kind = Literal["intercept", "slope"]
KINDS: tuple[Kind, ...] = ("intercept", "slope")
FOLDS = 10
_STEPS, _TOLERANCE, _FLAT = 100, 1e-8, 1e-12


@dataclass(frozen=True)
class Line:
    """What outputs become: intercepts + slope * outputs.

    Attributes:
        slope: the slope; 1 if the intercept alone was fitted.
        intercepts: one per output.
    """

    slope: float
    intercepts: tuple[float, ...]

    def __call__(self, outputs: Floats) -> Floats:
        """Return the outputs of the recalibrated model.

        >>> Line(0.5, (1.0,))(np.array([[2.0], [4.0]])).tolist()
        [[2.0], [3.0]]
        """
        found: Floats = np.array(self.intercepts) + self.slope * outputs
        return found


@dataclass(frozen=True)
class Recalibrated:
    """A fitted line, what it rests on, and the scores before and after.

    Attributes:
        kind: "intercept" or "slope".
        line: what outputs become.
        facts: JSON-ready: the numbers of rows and patients, "coefficients" with intervals, and "scores" of
            the model as it is ("before"), cross-validated and apparent.
    """

    kind: Kind
    line: Line
    facts: dict[str, Any]


def recalibrate(
    loss: LossName,
    kind: Kind,
    y: Any,
    outputs: Any,
    patients: NDArray[np.intp] | None = None,
    classes: Sequence[str] = (),
) -> Recalibrated:
    """Return the line that recalibrates a model at a site, with scores before and after.

    Args:
        loss: its name; the line depends on its task alone.
        kind: "intercept", or "slope" for both.
        y: one label per row: 0 and 1, the number of a class, or a quantity.
        outputs: (rows, outputs) of the model, before they become probabilities.
        patients: whose each row is, by number; None if every row is a patient of its own.
        classes: names of the classes, for sentences.

    Raises:
        DataError: if the table cannot carry the line, in a sentence that says why.

    >>> y, z = np.arange(60) % 3 == 0, np.where(np.arange(60) % 4 == 0, 1.0, 0.0)
    >>> round(recalibrate("binary", "intercept", y, z[:, None]).line.intercepts[0], 3)
    -0.969
    """
    labels, given, task = np.asarray(y, float), np.asarray(outputs, float), task_of(loss)
    given = given.reshape(len(labels), -1)
    _require_enough(task, labels, given, patients, classes)
    row = fitted_lines(task, kind, labels, given, np.ones((1, len(labels))))[0]
    _require_usable(task, row)
    line = Line(float(row[0]), tuple(map(float, row[1:])))
    facts: dict[str, Any] = {"kind": kind, "rows": len(labels)}
    facts |= {} if patients is None else {"patients": len(np.unique(patients))}
    facts |= {"events": int((labels > 0.5).sum())} if task == "binary" else {}
    facts["coefficients"] = {
        name: asdict(one)
        for name, one in coefficient_intervals(task, kind, labels, given, line, patients, classes).items()
    }
    ways = {
        "before": given,
        "cross_validated": cross_validated(loss, kind, labels, given, patients),
        "apparent": line(given),
    }
    facts["folds"] = FOLDS
    facts["scores"] = {
        way: {name: asdict(one) for name, one in score_intervals(loss, labels, values, patients).items()}
        for way, values in ways.items()
    }
    return Recalibrated(kind, line, facts)


def kinds_of_patients(
    task: Task, y: Floats, outputs: Floats, patients: NDArray[np.intp] | None
) -> NDArray[np.float64]:
    """Return (patients, kinds): whether a patient has rows of each kind of which a line needs enough.

    Kinds are non-events and events, the classes, or one for quantities.
    """
    place = np.arange(len(y)) if patients is None else np.unique(patients, return_inverse=True)[1]
    count = {"binary": 2, "multiclass": outputs.shape[1], "regression": 1}[task]
    found = np.zeros((int(place.max()) + 1, count))
    found[place, 0 if task == "regression" else y.astype(int)] = 1.0
    return found


def _require_enough(
    task: Task, y: Floats, outputs: Floats, patients: NDArray[np.intp] | None, classes: Sequence[str]
) -> None:
    counts = kinds_of_patients(task, y, outputs, patients).sum(0).astype(int)
    place = int(counts.argmin())
    if counts[place] >= MIN_COUNT:
        return
    named = classes[place] if len(classes) > place else place
    kinds = {
        "binary": ("non-events", "events")[place % 2],
        "multiclass": f"rows of class {named!r}",
        "regression": "rows",
    }
    kind = kinds[task] if patients is None else f"patients with {kinds[task]}"
    raise DataError(
        f"recalibration needs at least {MIN_COUNT} {kind}, and the table has {counts[place]}; add rows, or "
        "use the model as it is"
    )


def _require_usable(task: Task, row: Floats) -> None:
    if not np.isfinite(row).all():
        parted = "" if task == "regression" else ", or separate the classes"
        raise DataError(
            f"no finite slope fits best, because the model's outputs are all equal on this table{parted}; "
            "recalibrate the intercept"
        )
    if row[0] <= 0:
        raise DataError(
            f"the slope that fits this table is {row[0]:.3f}, not above 0: the model ranks these rows the "
            "wrong way round, which recalibration cannot repair; train again with this site"
        )


def fitted_lines(task: Task, kind: Kind, y: Floats, outputs: Floats, counts: Floats) -> Floats:
    """Return slope and intercepts under each row of `counts`; NaN if no finite line fits best.

    >>> z = np.array([[0.0], [1.0], [2.0]])
    >>> fitted_lines("regression", "slope", np.array([1.0, 3.0, 5.0]), z, np.ones((1, 3)))
    array([[2., 1.]])
    """
    if task == "multiclass":
        return _softmax_lines(kind, y.astype(int), outputs, counts)
    z = outputs[:, 0]
    if task == "binary" and kind == "slope":
        return calibration_line(y, z, counts)[:, ::-1]
    total, slope = counts.sum(1), np.ones(len(counts))
    if task == "binary":
        return np.stack([slope, calibration_intercept(y, z, counts)], 1)
    means = counts @ np.stack([z, y], 1) / total[:, None]
    if kind == "slope":
        centred = z - means[:, :1]
        spread = (counts * centred**2).sum(1)
        slope = np.divide((counts * centred) @ y, spread, out=np.full_like(spread, np.nan), where=spread > 0)
    return np.stack([slope, means[:, 1] - slope * means[:, 0]], 1)


def _design(kind: Kind, outputs: Floats) -> tuple[Floats, Floats]:
    """Return (rows, classes, parameters), what each parameter adds to each logit, and the logits without."""
    rows, classes = outputs.shape
    design = np.zeros((rows, classes, classes - 1 + (kind == "slope")))
    design[:, np.arange(1, classes), np.arange(classes - 1)] = 1.0
    if kind == "slope":
        design[:, :, -1] = outputs
    return design, np.zeros_like(outputs) if kind == "slope" else outputs


def _softmax_lines(kind: Kind, y: NDArray[np.intp], outputs: Floats, counts: Floats) -> Floats:
    """Return the lines of several classes by damped Newton steps; NaN in rows that do not converge.

    Separated classes do not: their likelihood has no maximum, and the steps never become small.
    """
    design, base = _design(kind, outputs)
    observed = design[np.arange(len(y)), y]
    found = np.zeros((len(counts), design.shape[2]))
    if kind == "slope":
        found[:, -1] = 1.0

    def state(at: Floats, drawn: Floats) -> tuple[Floats, Floats]:
        logits = base + np.einsum("nkp,dp->dnk", design, at)
        total = np.logaddexp.reduce(logits, axis=2)
        loss = np.einsum("dn,dn->d", drawn, total - logits[:, np.arange(len(y)), y])
        return loss, np.exp(logits - total[:, :, None])

    present = np.stack([counts @ (y == k) > 0 for k in range(outputs.shape[1])]).all(0)
    found[~present] = np.nan
    left = np.flatnonzero(present)
    for _ in range(_STEPS):
        drawn = counts[left]
        loss, shares = state(found[left], drawn)
        expected = np.einsum("dnk,nkp->dnp", shares, design)
        gradient = np.einsum("dn,dnp->dp", drawn, observed - expected)
        curvature = np.einsum("dn,dnk,nkp,nkq->dpq", drawn, shares, design, design, optimize=True)
        curvature -= np.einsum("dn,dnp,dnq->dpq", drawn, expected, expected, optimize=True)
        step = np.einsum("dpq,dq->dp", np.linalg.pinv(curvature, hermitian=True), gradient)
        for _ in range(30):
            worse = state(found[left] + step, drawn)[0] > loss + 1e-12 * np.abs(loss)
            if not worse.any():
                break
            step[worse] /= 2
        ends = np.linalg.eigvalsh(curvature)
        flat = ends[:, 0] <= _FLAT * ends[:, -1]  # towards infinity the likelihood has no curvature left
        found[left] = np.where(flat[:, None], np.nan, found[left] + step)
        left = left[~flat & (np.abs(step).max(1) >= _TOLERANCE)]
        if not len(left):
            break
    found[left] = np.nan
    slope = found[:, -1] if kind == "slope" else np.ones(len(found))
    return np.column_stack([slope, np.zeros(len(found)), found[:, : outputs.shape[1] - 1]])


def usable_lines(lines: Floats, enough: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the lines, with the model as it is in place of those that are refused; and which are not."""
    with np.errstate(invalid="ignore"):
        usable = enough & np.isfinite(lines).all(1) & (lines[:, 0] > 0)
    as_it_is = np.zeros(lines.shape[1])
    as_it_is[0] = 1.0
    found: Floats = np.where(usable[:, None], lines, as_it_is)
    return found, usable


def cross_validated(
    loss: LossName, kind: Kind, y: Floats, outputs: Floats, patients: NDArray[np.intp] | None
) -> Floats:
    """Return the outputs that recalibrated models have for rows that they were not fitted to.

    Each fold's line is fitted to the patients of the others; if there is no such line, the fold's rows keep
    the outputs of the model as it is.
    """
    folds = folds_of(y, FOLDS, loss, patients)
    others = (folds != np.arange(FOLDS)[:, None]).astype(float)
    lines = fitted_lines(task_of(loss), kind, y, outputs, others)
    own = usable_lines(lines, np.ones(FOLDS, bool))[0][folds]
    found: Floats = own[:, 1:] + own[:, :1] * outputs
    return found


def coefficient_intervals(
    task: Task,
    kind: Kind,
    y: Floats,
    outputs: Floats,
    line: Line,
    patients: NDArray[np.intp] | None = None,
    classes: Sequence[str] = (),
) -> dict[str, Interval]:
    """Return the fitted intercept (or one per class but the first) and slope with their 95 % intervals.

    Variances are those of the likelihood; if patients have several rows, a patient's influences are added
    first, as for scores, and limits are by Student's t.
    """
    if task == "regression":
        columns = np.column_stack([np.ones(len(y)), outputs] if kind == "slope" else [np.ones(len(y))])
        left_over = y - line(outputs)[:, 0]
        curvature = (
            columns.T @ columns / max(float(left_over @ left_over) / (len(y) - columns.shape[1]), 1e-300)
        )
        pulls = left_over[:, None] * columns
    else:
        logits = np.column_stack([np.zeros(len(y)), outputs]) if task == "binary" else outputs
        design, _ = _design(kind, logits)
        moved = line.slope * logits + np.array([0.0, *line.intercepts[-(logits.shape[1] - 1) :]])
        shares = np.exp(moved - np.logaddexp.reduce(moved, axis=1)[:, None])
        expected = np.einsum("nk,nkp->np", shares, design)
        pulls = design[np.arange(len(y)), y.astype(int)] - expected
        curvature = np.einsum("nk,nkp,nkq->pq", shares, design, design) - expected.T @ expected
    covariance = np.linalg.inv(curvature)
    values = [
        *line.intercepts[1 if task == "multiclass" else 0 :],
        *([line.slope] if kind == "slope" else []),
    ]
    named = [f"intercept of {name}" for name in classes[1:]] if task == "multiclass" else ["intercept"]
    names = [*(named or [f"intercept of class {k}" for k in range(1, outputs.shape[1])]), "slope"]
    found = {}
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    for place, value in enumerate(values):
        one = with_variance(value, pulls @ covariance[place], float(covariance[place, place]))
        influence = per_patient(one.influence, patients)
        quantile = z if patients is None else t_quantile(z, len(influence) - 1)
        reach = quantile * float(np.sqrt(influence @ influence))
        found[names[place]] = Interval(value, value - reach, value + reach)
    return found
