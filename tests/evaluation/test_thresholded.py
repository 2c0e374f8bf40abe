"""The authors' areas, against scikit-learn batch by batch as their code takes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score

from fedilc.evaluation import thresholded_areas


def by_batches(predicted: list[bool], actual: list[bool], batch: int) -> dict[str, float | None]:
    areas: dict[str, list[float]] = {"auroc": [], "auprc": []}
    for start in range(0, len(actual) - batch + 1, batch):
        p = np.array(predicted[start : start + batch], float)
        a = np.array(actual[start : start + batch], float)
        if 0 < a.sum() < batch:
            areas["auroc"].append(roc_auc_score(a, p))
        if a.sum():
            precision, recall, _ = precision_recall_curve(a, p)
            areas["auprc"].append(auc(recall, precision))
    return {key: sum(found) / len(found) if found else None for key, found in areas.items()}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60), st.integers(2, 12))
def test_they_equal_the_areas_of_thresholded_predictions_batch_by_batch(
    examples: list[tuple[bool, bool]], batch: int
) -> None:
    predicted, actual = (list(column) for column in zip(*examples, strict=True))
    logits = torch.tensor([[1.5] if p else [-0.5] for p in predicted])
    found = thresholded_areas(logits, torch.tensor(actual).float(), batch)
    for key, expected in by_batches(predicted, actual, batch).items():
        assert found[key] == (None if expected is None else pytest.approx(expected, abs=1e-12))
