"""Scores of a model on one set of examples, for many resamples of it at once.

They are for the intervals of studies and reports; `metrics.py` has what a run records by round.
A resample is a row of counts: how often each example occurs in it. All scores of all rows are computed
from one sort of the examples, so that a bootstrap costs little more than a matrix product.

    binary       auroc, auprc (average precision), log_loss, brier, accuracy, calibration_slope,
                 calibration_intercept (see `fedilc.evaluation.calibration`)
    multiclass   accuracy, log_loss, auroc (mean over the classes that occur, each against the rest)
    regression   rmse, mae, r2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedilc.algorithms.loss_name import Task, task_of
from fedilc.evaluation.calibration import Floats, calibration_intercept, calibration_slope, sigmoid

HIGHER_IS_BETTER = ("auroc", "auprc", "accuracy", "r2")  # of the scores below
SCORES: Mapping[Task, tuple[str, ...]] = {
    "binary": (
        "auroc",
        "auprc",
        "log_loss",
        "brier",
        "accuracy",
        "calibration_slope",
        "calibration_intercept",
    ),
    "multiclass": ("accuracy", "log_loss", "auroc"),
    "regression": ("rmse", "mae", "r2"),
}


def scores(loss: str, y: Any, outputs: Any, counts: Floats | None = None) -> dict[str, Floats]:
    """Return every score under each row of `counts` (by default one row of ones); NaN if undefined.

    Args:
        loss: its name; which scores there are depends on its task.
        y: one label per example.
        outputs: the model's outputs: one logit or number per example, or one logit per class.
        counts: (rows, examples), how often each example occurs.

    >>> found = scores("binary", [0, 1, 0, 1], [-2.0, -1.0, 1.0, 3.0])
    >>> float(found["auroc"][0]), float(found["accuracy"][0])
    (0.75, 0.5)
    """
    labels, task = np.asarray(y, float), task_of(loss)
    given = np.asarray(outputs, float)
    if task != "multiclass":
        given = given.reshape(len(labels))
    rows = np.ones((1, len(labels))) if counts is None else counts
    found = _BY_TASK[task](labels, given, rows)
    if task == "binary":
        found["calibration_slope"] = calibration_slope(labels, given, rows)
        found["calibration_intercept"] = calibration_intercept(labels, given, rows)
    return found


def _binary(y: Floats, logits: Floats, counts: Floats) -> dict[str, Floats]:
    total = counts.sum(1)
    auroc, auprc = areas(y > 0.5, logits, counts)
    return {
        "auroc": auroc,
        "auprc": auprc,
        "log_loss": counts @ np.logaddexp(0.0, (1 - 2 * y) * logits) / total,
        "brier": counts @ (sigmoid(logits) - y) ** 2 / total,
        "accuracy": counts @ ((logits > 0) == (y > 0.5)) / total,
    }


def _multiclass(y: Floats, logits: Floats, counts: Floats) -> dict[str, Floats]:
    classes, total = y.astype(int), counts.sum(1)
    given = -torch.from_numpy(logits).log_softmax(1).numpy()[np.arange(len(y)), classes]
    by_class = []
    for number in np.unique(classes):
        rest = torch.from_numpy(np.delete(logits, number, axis=1))
        odds = logits[:, number] - rest.logsumexp(1).numpy()  # ranks as the probability, and never saturates
        by_class.append(areas(classes == number, odds, counts)[0])
    defined = ~np.isnan(by_class)
    sums, among = np.where(defined, by_class, 0.0).sum(0), defined.sum(0)
    return {
        "accuracy": counts @ (logits.argmax(1) == classes) / total,
        "log_loss": counts @ given / total,
        "auroc": np.divide(sums, among, out=np.full(len(counts), np.nan), where=among > 0),
    }


def _regression(y: Floats, predicted: Floats, counts: Floats) -> dict[str, Floats]:
    total = counts.sum(1)
    squares = counts @ (predicted - y) ** 2
    centred = y - y.mean()  # the variance does not depend on the centre, its rounding does
    spread = counts @ centred**2 - (counts @ centred) ** 2 / total
    r2 = 1 - np.divide(squares, spread, out=np.full_like(squares, np.nan), where=spread > 0)
    return {"rmse": np.sqrt(squares / total), "mae": counts @ np.abs(predicted - y) / total, "r2": r2}


_BY_TASK: Mapping[Task, Callable[[Floats, Floats, Floats], dict[str, Floats]]] = {
    "binary": _binary,
    "multiclass": _multiclass,
    "regression": _regression,
}


def areas(positive: NDArray[np.bool_], values: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return the areas under the ROC curve and the precision-recall curve under each row of `counts`.

    Ties count half in the first; the second is the average precision. NaN in rows with one class.
    """
    order = np.argsort(-values, kind="stable")
    first_of_ties = np.flatnonzero(np.append(True, np.diff(values[order]) != 0))
    y = positive[order].astype(float)
    found = np.add.reduceat(counts[:, order] * y, first_of_ties, axis=1)
    false = np.add.reduceat(counts[:, order] * (1 - y), first_of_ties, axis=1)
    hits, misses = found.cumsum(1), false.cumsum(1)
    all_found, all_false = hits[:, -1], misses[:, -1]
    pairs = (false * (hits - found / 2)).sum(1)
    taken = hits + misses
    precision = np.divide(hits, taken, out=np.zeros_like(hits), where=taken > 0)
    nothing = np.full(len(counts), np.nan)
    both = (all_found > 0) & (all_false > 0)
    roc = np.divide(pairs, all_found * all_false, out=nothing.copy(), where=both)
    return roc, np.divide((precision * found).sum(1), all_found, out=nothing, where=both)
