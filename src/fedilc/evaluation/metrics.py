"""Metrics of a model on a set of examples, and scores for many resamples of it at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedilc.algorithms.loss_registry import Task, task_of
from fedilc.algorithms.metric_registry import METRICS, metric_of, register
from fedilc.errors import ConfigError
from fedilc.evaluation.calibration import (
    Floats,
    calibration_intercept,
    calibration_slope,
    log_losses,
    sigmoid,
)
from fedilc.evaluation.estimates import support
from fedilc.evaluation.inconsistency import INCONSISTENCY
from fedilc.gradients import Loss

HIGHER_IS_BETTER = ("auroc", "auprc", "accuracy", "r2")  # of the scores below
SCORES: Mapping[Task, tuple[str, ...]] = {
    "binary": (
        "auroc",
        "auprc",
        "log_loss",
        "log_loss_refitted",
        "brier",
        "accuracy",
        "calibration_slope",
        "calibration_intercept",
    ),
    "multiclass": ("accuracy", "log_loss", "auroc"),
    "regression": ("rmse", "mae", "r2"),
}


def scores(
    loss: str, y: Any, outputs: Any, counts: Floats | None = None, only: str | None = None
) -> dict[str, Floats]:
    """Return every score under each row of `counts` (by default one row of ones); NaN if undefined.

    Args:
        loss: its name; which scores there are depends on its task.
        y: one label per example.
        outputs: the model's outputs: one logit or number per example, or one logit per class.
        counts: (rows, examples), how often each example occurs.
        only: the one score to compute; None is all of them.

    >>> found = scores("binary", [0, 1, 0, 1], [-2.0, -1.0, 1.0, 3.0])
    >>> float(found["auroc"][0]), float(found["accuracy"][0])
    (0.75, 0.5)
    """
    labels, task = np.asarray(y, float), task_of(loss)
    given = np.asarray(outputs, float)
    if task != "multiclass":
        given = given.reshape(len(labels))
    rows = np.ones((1, len(labels))) if counts is None else counts
    names = SCORES[task] if only is None else (only,)
    return {name: _SCORES[task, name](labels, given, rows) for name in names}


_Score = Callable[[Floats, Floats, Floats], Floats]  # from labels, outputs and counts


def _mean_under(counts: Floats, values: Any) -> Floats:
    found: Floats = counts @ values / counts.sum(1)
    return found


def _log_loss_refitted(y: Floats, logits: Floats, counts: Floats) -> Floats:
    intercept = calibration_intercept(y, logits, counts)  # a resample with one class has none, and gives NaN
    refitted = log_losses(y, intercept[:, None] + logits)
    found: Floats = (counts * refitted).sum(1) / counts.sum(1)
    return found


def _multiclass_auroc(y: Floats, logits: Floats, counts: Floats) -> Floats:
    classes, by_class = y.astype(int), []
    for number in np.unique(classes):
        rest = torch.from_numpy(np.delete(logits, number, axis=1))
        odds = logits[:, number] - rest.logsumexp(1).numpy()  # ranks as the probability, and never saturates
        by_class.append(areas(classes == number, odds, counts)[0])
    defined = ~np.isnan(by_class)
    sums, among = np.where(defined, by_class, 0.0).sum(0), defined.sum(0)
    found: Floats = np.divide(sums, among, out=np.full(len(counts), np.nan), where=among > 0)
    return found


def _class_losses(y: Floats, logits: Floats) -> Floats:
    found: Floats = -torch.from_numpy(logits).log_softmax(1).numpy()[np.arange(len(y)), y.astype(int)]
    return found


def _r2(y: Floats, predicted: Floats, counts: Floats) -> Floats:
    centred = y - y.mean()  # the variance does not depend on the centre, its rounding does
    spread = counts @ centred**2 - (counts @ centred) ** 2 / counts.sum(1)
    squares = counts @ (predicted - y) ** 2
    found: Floats = 1 - np.divide(squares, spread, out=np.full_like(squares, np.nan), where=spread > 0)
    return found


_SCORES: Mapping[tuple[Task, str], _Score] = {
    ("binary", "auroc"): lambda y, logits, counts: areas(y > 0.5, logits, counts)[0],
    ("binary", "auprc"): lambda y, logits, counts: areas(y > 0.5, logits, counts)[1],
    ("binary", "log_loss"): lambda y, logits, counts: _mean_under(counts, log_losses(y, logits)),
    ("binary", "log_loss_refitted"): _log_loss_refitted,
    ("binary", "brier"): lambda y, logits, counts: _mean_under(counts, (sigmoid(logits) - y) ** 2),
    ("binary", "accuracy"): lambda y, logits, counts: _mean_under(counts, (logits > 0) == (y > 0.5)),
    ("binary", "calibration_slope"): calibration_slope,
    ("binary", "calibration_intercept"): calibration_intercept,
    ("multiclass", "accuracy"): lambda y, logits, counts: _mean_under(counts, logits.argmax(1) == y),
    ("multiclass", "log_loss"): lambda y, logits, counts: _mean_under(counts, _class_losses(y, logits)),
    ("multiclass", "auroc"): _multiclass_auroc,
    ("regression", "rmse"): lambda y, outputs, counts: np.sqrt(_mean_under(counts, (outputs - y) ** 2)),
    ("regression", "mae"): lambda y, outputs, counts: _mean_under(counts, np.abs(outputs - y)),
    ("regression", "r2"): _r2,
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


def measure(
    loss: Loss, logits: Tensor, y: Tensor, metrics: Sequence[str] | None = None
) -> dict[str, float | None]:
    """Return metrics of all examples at once; a metric that is not defined or not estimable is None.

    For classes: loss, accuracy, AUROC and AUPRC; multiclass areas are one-against-rest means over the classes
    that occur. Areas are not estimable from few examples of a class (`estimates.py`). For quantities:
    loss, root mean squared error, mean absolute error and R^2. With them are those of `metrics`, by the names
    that they were registered with.

    >>> import torch
    >>> scores = torch.tensor([[-2.0], [-1.0], [1.0], [3.0]] * 5)
    >>> found = measure(Loss("binary"), scores, torch.tensor([0.0, 1.0, 0.0, 1.0] * 5))
    >>> found["accuracy"], found["auroc"]
    (0.5, 0.75)
    """
    logits, y = logits.cpu(), y.cpu()
    outputs = logits if task_of(loss.name) == "multiclass" else logits[:, 0]
    functions = {name: METRICS.get(name).function for name in metrics or ()}
    own = {name: _own(name, f, outputs, y) for name, f in functions.items() if f is not None}
    return _built_in(loss, logits, y) | own


def _own(name: str, function: Callable[[Tensor, Tensor], object], outputs: Tensor, y: Tensor) -> float | None:
    """Return the value of a registered metric."""
    try:
        found: Any = function(outputs, y)
        return None if found is None else _finite(torch.as_tensor(found).double())
    except Exception as error:  # a function of someone else may raise anything
        raise ConfigError(
            f"the metric {name!r} fails for {len(y)} examples: {type(error).__name__}: {error}; correct its "
            "function, which must return one number"
        ) from error


def _built_in(loss: Loss, logits: Tensor, y: Tensor) -> dict[str, float | None]:
    values = loss.per_example(logits, y).double()
    if not loss.has_classes:
        errors = _errors(logits[:, 0].double(), y.double())
        return {"loss": _finite(values.mean()), **errors, "examples": len(y)}
    if task_of(loss.name) == "binary":
        right = (logits[:, 0] > 0) == (y > 0.5)
        targets = (y > 0.5).unsqueeze(1)
    else:
        right = logits.argmax(1) == y
        targets = y.unsqueeze(1) == y.unique().unsqueeze(0)
        logits = _log_odds(logits.double())[:, y.unique()]
    auroc, auprc = _areas(targets.numpy(), logits.double().numpy())
    if support(loss.name, y.numpy(), "auroc").reason is not None:
        auroc = auprc = None
    return {
        "loss": _finite(values.mean()),
        "accuracy": float(right.double().mean()),
        "auroc": auroc,
        "auprc": auprc,
        "examples": len(y),
    }


def _errors(predicted: Tensor, y: Tensor) -> dict[str, float | None]:
    """Return RMSE, MAE and R^2 = 1 - (sum of squared errors)/(sum of squares around the mean of y)."""
    errors = predicted - y
    squares, spread = errors.square().sum(), (y - y.mean()).square().sum()
    return {
        "rmse": _finite((squares / len(y)).sqrt()),
        "mae": _finite(errors.abs().mean()),
        "r2": _finite(1 - squares / spread) if spread > 0 else None,
    }


def _finite(value: Tensor) -> float | None:
    return number if math.isfinite(number := float(value)) else None


def _log_odds(logits: Tensor) -> Tensor:
    """Return the log-odds of each class against all others, which order examples like its probability."""
    columns = range(logits.shape[1])
    others = [logits[:, [k for k in columns if k != c]].logsumexp(1) for c in columns]
    return logits - torch.stack(others, 1)


def _areas(targets: NDArray[np.bool_], scores: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Return the mean areas under the ROC and the precision-recall curve over the columns."""
    if not np.isfinite(scores).all():
        return None, None
    columns = [c for c in range(targets.shape[1]) if 0 < targets[:, c].sum() < len(targets)]
    if not columns:
        return None, None
    once = np.ones((1, len(targets)))
    found = [areas(targets[:, c], scores[:, c], once) for c in columns]
    roc, precision = (
        sum(float(values[0]) for values in part) / len(found) for part in zip(*found, strict=True)
    )
    return roc, precision


def thresholded_areas(logits: Tensor, y: Tensor, batch: int) -> dict[str, float | None]:
    """Return the means over full batches of the areas under the curves of thresholded predictions.

    The authors' code computes areas like this; they are only to compare with the paper's tables.

    A 0/1 prediction has a ROC curve of one corner, whose area is (sensitivity + specificity) / 2, and a
    precision-recall curve of one corner, whose area (by trapezia, as in the authors' code) is
    (1 - recall) (precision + prevalence) / 2 + recall (1 + precision) / 2. A batch of one class is left out
    of the first mean, a batch without positives and an incomplete last batch are left out of both.

    >>> logits = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    >>> thresholded_areas(logits, torch.tensor([1.0, 0.0, 0.0, 0.0]), 4)["auroc"]
    0.8333333333333333
    """
    full = len(y) // batch * batch
    predicted = (logits[:full, 0].cpu() > 0).reshape(-1, batch)
    actual = (y[:full].cpu() > 0.5).reshape(-1, batch)
    hits = (predicted & actual).sum(1).double()
    positives, called = actual.sum(1).double(), predicted.sum(1).double()
    negatives = batch - positives
    recall = hits / positives
    specificity = (negatives - (called - hits)) / negatives
    precision = torch.where(called > 0, hits / called, 1.0)
    prevalence = positives / batch
    roc = ((recall + specificity) / 2)[(positives > 0) & (negatives > 0)]
    areas = (1 - recall) * (precision + prevalence) / 2 + recall * (1 + precision) / 2
    return {"auroc": _mean(roc), "auprc": _mean(areas[positives > 0])}


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def fairness(accuracies: Mapping[str, float]) -> dict[str, float | str]:
    """Return the variance and entropy of accuracies, their KL divergence to uniform, and the worst silo.

    The variance is over silos (1/n). The entropy, in nats, is that of the accuracies divided by their sum;
    the divergence of that distribution from the uniform one is log(n) minus the entropy.

    >>> even = fairness({"a": 0.5, "b": 0.5})
    >>> even["variance"], round(even["entropy"], 4), even["divergence"]
    (0.0, 0.6931, 0.0)
    >>> fairness({"a": 0.9, "b": 0.5})["worst_silo"]
    'b'
    """
    values = list(accuracies.values())
    mean = sum(values) / len(values)
    total = sum(values)
    shares = [value / total for value in values] if total else [1 / len(values)] * len(values)
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    worst = min(accuracies, key=lambda silo: accuracies[silo])
    return {
        "variance": sum((value - mean) ** 2 for value in values) / len(values),
        "entropy": max(0.0, entropy),
        "divergence": max(0.0, math.log(len(values)) - entropy),
        "worst_silo": worst,
        "worst_accuracy": accuracies[worst],
    }


__all__ = ["fairness", "measure", "register", "thresholded_areas"]


def lower_is_better(metric: str) -> bool:
    """Return whether lower is better: for losses, errors, variances and inconsistencies only.

    >>> lower_is_better("test_loss"), lower_is_better("fairness_entropy")
    (True, False)
    """
    found = metric_of(metric)
    if found is not None:
        return not found.higher_is_better
    return metric.endswith(("loss", "rmse", "mae", "variance")) or metric.startswith(INCONSISTENCY)
