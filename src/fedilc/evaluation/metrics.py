"""Metrics of a whole set at once, never batch by batch."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedilc.evaluation.scores import areas
from fedilc.gradients import Loss


def measure(loss: Loss, logits: Tensor, y: Tensor) -> dict[str, float | None]:
    """Return metrics of these examples; a metric that is not defined (an area of one class) is None.

    For classes: loss, accuracy, AUROC and AUPRC; multiclass areas are one-against-rest means over the classes
    that occur. For quantities: loss, root mean squared error, mean absolute error and R^2.

    >>> import torch
    >>> scores = torch.tensor([[-2.0], [-1.0], [1.0], [3.0]])
    >>> found = measure(Loss("binary"), scores, torch.tensor([0.0, 1.0, 0.0, 1.0]))
    >>> found["accuracy"], found["auroc"]
    (0.5, 0.75)
    """
    logits, y = logits.cpu(), y.cpu()
    values = loss.per_example(logits, y).double()
    if not loss.has_classes:
        errors = _errors(logits[:, 0].double(), y.double())
        return {"loss": _finite(values.mean()), **errors, "examples": len(y)}
    if loss.name == "binary":
        right = (logits[:, 0] > 0) == (y > 0.5)
        targets = (y > 0.5).unsqueeze(1)
    else:
        right = logits.argmax(1) == y
        targets = y.unsqueeze(1) == y.unique().unsqueeze(0)
        logits = _log_odds(logits.double())[:, y.unique()]
    auroc, auprc = _areas(targets.numpy(), logits.double().numpy())
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
