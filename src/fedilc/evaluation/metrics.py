"""Loss, accuracy, AUROC and AUPRC of a whole set at once, never batch by batch."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from fedilc.gradients import Loss


def measure(loss: Loss, logits: Tensor, y: Tensor) -> dict[str, float | None]:
    """Metrics of these examples; what is not defined (an area of a single class) is None.

    Multiclass areas are one-against-rest means over the classes that occur.

    >>> import torch
    >>> scores = torch.tensor([[-2.0], [-1.0], [1.0], [3.0]])
    >>> found = measure(Loss("binary"), scores, torch.tensor([0.0, 1.0, 0.0, 1.0]))
    >>> found["accuracy"], found["auroc"]
    (0.5, 0.75)
    """
    logits, y = logits.cpu(), y.cpu()
    values = loss.per_example(logits, y).double()
    if loss.name == "binary":
        right = (logits[:, 0] > 0) == (y > 0.5)
        targets = (y > 0.5).unsqueeze(1)
    else:
        right = logits.argmax(1) == y
        targets = y.unsqueeze(1) == y.unique().unsqueeze(0)
        logits = _log_odds(logits.double())[:, y.unique()]
    auroc, auprc = _areas(targets.numpy(), logits.double().numpy())
    return {
        "loss": mean if math.isfinite(mean := float(values.mean())) else None,
        "accuracy": float(right.double().mean()),
        "auroc": auroc,
        "auprc": auprc,
        "examples": len(y),
    }


def _log_odds(logits: Tensor) -> Tensor:
    """Each class against all others; ranks as its probability does, and never saturates."""
    columns = range(logits.shape[1])
    others = [logits[:, [k for k in columns if k != c]].logsumexp(1) for c in columns]
    return logits - torch.stack(others, 1)


def _areas(targets: NDArray[np.bool_], scores: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Mean areas under the ROC and the precision-recall curve over the columns."""
    if not np.isfinite(scores).all():
        return None, None
    columns = [c for c in range(targets.shape[1]) if 0 < targets[:, c].sum() < len(targets)]
    if not columns:
        return None, None
    roc = [float(roc_auc_score(targets[:, c], scores[:, c])) for c in columns]
    precision = [float(average_precision_score(targets[:, c], scores[:, c])) for c in columns]
    return sum(roc) / len(roc), sum(precision) / len(precision)
