"""Areas under curves as the authors' code computes them, only to compare with the paper's tables."""

from __future__ import annotations

import torch
from torch import Tensor


def thresholded_areas(logits: Tensor, y: Tensor, batch: int) -> dict[str, float | None]:
    """Return the means over full batches of the areas under the curves of thresholded predictions.

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
