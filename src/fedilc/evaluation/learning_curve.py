"""How many local patients a recalibration takes: draws of a site's patients, and the scores on the others.

Per size, patients are drawn at random without replacement, and not stratified by label, because that is how
local patients arrive; all rows of a patient are drawn together. The line is fitted to the drawn patients, and
both models are scored on all others. If `recalibrate` would refuse a draw (fewer than 10 events or non-events
in it, or no usable slope), the model stays as it is for that draw, as it would at the site.

Draws of one table overlap, and so do the patients that score them. The spread over draws is that of the draw
and of its scoring together; it does not say how another site differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedilc.algorithms.loss_registry import LossName, Task, task_of
from fedilc.evaluation.calibration import Floats, calibration_intercept, calibration_slope, sigmoid
from fedilc.evaluation.estimates import MIN_COUNT
from fedilc.evaluation.recalibration import Kind, fitted_lines, kinds_of_patients, usable_lines
from fedilc.seeds import numpy_generator

SIZES, DRAWS = (50, 100, 200), 200
LEAST_OTHERS = 50  # patients that score a draw
NEAR = 0.2  # how far from 0 a mean calibration intercept may be
_AT_ONCE = 4_000_000  # outputs in memory at a time
DECIDES: Mapping[Task, str] = {"binary": "log_loss", "multiclass": "log_loss", "regression": "rmse"}


@dataclass(frozen=True)
class Spread:
    """The mean and the standard deviation of a score over draws; None if it is defined in no draw."""

    mean: float | None
    sd: float | None

    def __str__(self) -> str:
        """Return it as text.

        >>> str(Spread(0.1234, 0.05)), str(Spread(None, None))
        ('0.123 (0.050)', '-')
        """
        return "-" if self.mean is None else f"{self.mean:.3f} ({self.sd:.3f})"


@dataclass(frozen=True)
class CurvePoint:
    """The scores of both models with one number of local patients.

    Attributes:
        patients: how many are drawn.
        draws: how many draws there are.
        refitted: in how many of them the model was recalibrated; in the others it stays as it is.
        lower: the share of draws in which recalibration lowers the loss that decides (log loss, RMSE).
        before: each score of the model as it is, on the patients that were not drawn.
        after: each score of the recalibrated model, on the same patients.
    """

    patients: int
    draws: int
    refitted: int
    lower: float
    before: dict[str, Spread]
    after: dict[str, Spread]


def possible_sizes(
    task: Task,
    y: Floats,
    outputs: Floats,
    patients: NDArray[np.intp] | None,
    sizes: Sequence[int] = SIZES,
) -> tuple[int, ...]:
    """Return the sizes of draws that leave enough patients to score them.

    At least 50 patients must remain, and on average 10 of each kind of which a line needs 10.
    """
    kinds = kinds_of_patients(task, y, outputs, patients)
    most, rarest = len(kinds), float(kinds.sum(0).min())
    return tuple(
        size for size in sizes if most - size >= LEAST_OTHERS and rarest * (most - size) / most >= MIN_COUNT
    )


def learning_curve(
    loss: LossName,
    kind: Kind,
    y: Any,
    outputs: Any,
    patients: NDArray[np.intp] | None = None,
    *,
    sizes: Sequence[int] = SIZES,
    draws: int = DRAWS,
    seed: int = 0,
) -> list[CurvePoint]:
    """Return a point per size that the table allows.

    Args:
        loss: its name; the scores depend on its task.
        kind: "intercept", or "slope" for both.
        y: one label per row.
        outputs: (rows, outputs) of the model, before they become probabilities.
        patients: whose each row is, by number; None if every row is a patient of its own.
        sizes: numbers of local patients.
        draws: how many draws there are per size.
        seed: draws depend on it and on the size.
    """
    labels, task = np.asarray(y, float), task_of(loss)
    given = np.asarray(outputs, float).reshape(len(labels), -1)
    allowed = possible_sizes(task, labels, given, patients, sizes)
    return [_point(task, kind, labels, given, patients, size, draws, seed) for size in allowed]


def _point(
    task: Task,
    kind: Kind,
    y: Floats,
    outputs: Floats,
    patients: NDArray[np.intp] | None,
    size: int,
    draws: int,
    seed: int,
) -> CurvePoint:
    place = np.arange(len(y)) if patients is None else np.unique(patients, return_inverse=True)[1]
    kinds = kinds_of_patients(task, y, outputs, patients)
    generator = numpy_generator(seed, "learning curve", size)
    as_it_is = np.eye(1, 1 + outputs.shape[1])
    was: list[dict[str, Floats]] = []
    now: list[dict[str, Floats]] = []
    refitted = 0
    for begin in range(0, draws, at_once := max(1, _AT_ONCE // outputs.size)):
        count = min(at_once, draws - begin)
        drawn = np.zeros((count, len(kinds)))
        np.put_along_axis(drawn, generator.random(drawn.shape).argsort(1)[:, :size], 1.0, 1)
        rows = drawn[:, place]
        lines = fitted_lines(task, kind, y, outputs, rows)
        lines, usable = usable_lines(lines, (drawn @ kinds).min(1) >= MIN_COUNT)
        refitted += int(usable.sum())
        was.append(scores_of_lines(task, y, outputs, np.repeat(as_it_is, count, 0), 1 - rows))
        now.append(scores_of_lines(task, y, outputs, lines, 1 - rows))
    before, after = ({name: np.concatenate([one[name] for one in of]) for name in of[0]} for of in (was, now))
    decides = DECIDES[task]
    return CurvePoint(
        size,
        draws,
        refitted,
        float((after[decides] < before[decides]).mean()),
        {name: _spread(values) for name, values in before.items()},
        {name: _spread(values) for name, values in after.items()},
    )


def _spread(values: Floats) -> Spread:
    known = values[np.isfinite(values)]
    if not len(known):
        return Spread(None, None)
    return Spread(float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else 0.0)


def scores_of_lines(
    task: Task, y: Floats, outputs: Floats, lines: Floats, counts: Floats
) -> dict[str, Floats]:
    """Return the scores of a model after each line, under the same row of `counts`; NaN if undefined.

    The calibration slope of a + b z is that of z over b, so that no line needs a regression of its own.
    """
    total = counts.sum(1)
    if task == "multiclass":
        logits = lines[:, None, 1:] + lines[:, :1, None] * outputs
        places = y.astype(int)
        losses = np.logaddexp.reduce(logits, axis=2) - logits[:, np.arange(len(y)), places]
        right = logits.argmax(2) == places
        return {"log_loss": (counts * losses).sum(1) / total, "accuracy": (counts * right).sum(1) / total}
    z = outputs[:, 0]
    moved = lines[:, 1:] + lines[:, :1] * z
    if task == "regression":
        errors = moved - y
        return {
            "rmse": np.sqrt((counts * errors**2).sum(1) / total),
            "mae": (counts * np.abs(errors)).sum(1) / total,
        }
    risks, expected = sigmoid(moved), (counts * sigmoid(moved)).sum(1)
    return {
        "calibration_intercept": calibration_intercept(y, moved, counts),
        "calibration_slope": calibration_slope(y, z, counts) / lines[:, 0],
        "oe_ratio": counts @ y / expected,
        "log_loss": (counts * np.logaddexp(0.0, (1 - 2 * y) * moved)).sum(1) / total,
        "brier": (counts * (risks - y) ** 2).sum(1) / total,
    }


def answer(task: Task, points: Sequence[CurvePoint]) -> str:
    """Say how many local patients it takes, in one sentence.

    Enough is the smallest number at which the loss is below that of the model as it is, in the mean and in
    more than half of the draws, and, for two classes, the mean calibration intercept within 0.2 of 0.
    """
    if not points:
        kinds = {"binary": "10 events and 10 non-events", "multiclass": "10 of each class", "regression": ""}
        among = f", with {kinds[task]} among them on average" if kinds[task] else ""
        return (
            f"There are too few patients for a learning curve: a draw of {SIZES[0]} must leave "
            f"{LEAST_OTHERS} others to score it{among}."
        )
    name = DECIDES[task]
    words = {"log_loss": "log loss", "rmse": "RMSE"}[name]
    enough = next((point for point in points if _enough(point, name)), None)
    shown = enough or points[-1]
    now, was = shown.after[name], shown.before[name]
    told = f"a mean {words} of {now.mean:.3f} ({was.mean:.3f} as it is; lower in {shown.lower:.0%} of draws)"
    if task == "binary":
        at, before = (of["calibration_intercept"].mean for of in (shown.after, shown.before))
        told += f" and a mean calibration intercept of {at:+.2f} ({before:+.2f} as it is)"
    if enough is not None:
        return (
            f"{shown.patients} local patients are enough here: recalibrated with them, the model has {told}."
        )
    sizes = ", ".join(str(point.patients) for point in points)
    return (
        f"Recalibration is not shown to help here with any number of local patients tried ({sizes}): with "
        f"{shown.patients}, the model has {told}."
    )


def _enough(point: CurvePoint, name: str) -> bool:
    now, was = point.after[name].mean, point.before[name].mean
    intercept = point.after.get("calibration_intercept", Spread(0.0, 0.0)).mean
    if now is None or was is None or intercept is None:
        return False
    return now < was and point.lower > 0.5 and abs(intercept) <= NEAR
