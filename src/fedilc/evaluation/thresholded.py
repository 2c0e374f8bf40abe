"""The areas as the authors' code takes them, for comparison with the paper's tables only."""

from __future__ import annotations

import torch
from torch import Tensor


def thresholded_areas(logits: Tensor, y: Tensor, batch: int) -> dict[str, float | None]:
    """Means over full batches of the areas under the curves of thresholded predictions.

    A 0/1 prediction gives a ROC curve of one corner, whose area is (sensitivity + specificity) / 2,
    and a precision-recall curve of one corner, whose area (by trapezia, as the authors take it) is
    (1 - recall) (precision + prevalence) / 2 + recall (1 + precision) / 2. A batch of one class is
    left out of the first, one without positives of both, and so is an incomplete last batch.

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
