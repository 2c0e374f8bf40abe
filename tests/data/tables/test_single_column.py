"""How well a column alone predicts the label: by its values, its missing cells, and both together."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedilc.data.tables.silo_summary import single_column_auroc

ROWS = 60
LABELS = np.arange(ROWS) % 2


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.2, 0.6]))
def test_the_area_is_the_best_of_scikit_learns(seed: int, gaps: float) -> None:
    random = np.random.default_rng(seed)
    values = LABELS * random.exponential() + random.normal(size=ROWS)
    gone = random.random(ROWS) < gaps
    filled = [np.where(gone, end, values) for end in (-99.0, 99.0)]
    areas = [roc_auc_score(LABELS, scores) for scores in (*filled, gone)]
    known = LABELS[~gone]
    if len(known) >= 20 and 3 <= known.sum() <= len(known) - 3:
        areas.append(roc_auc_score(known, values[~gone]))
    column = pl.Series([None if lost else value for lost, value in zip(gone, values, strict=True)])
    assert single_column_auroc("number", column, LABELS) == pytest.approx(max(max(a, 1 - a) for a in areas))


def test_values_and_missing_cells_tell_more_together_than_either_alone() -> None:
    low = pl.Series([3.0 if label else (1.0 if row % 4 else None) for row, label in enumerate(LABELS)])
    assert single_column_auroc("number", low, LABELS) == 1.0
    presence = pl.Series([float(row % 5) if label else None for row, label in enumerate(LABELS)])
    assert single_column_auroc("number", presence, LABELS) == 1.0


def test_names_are_scored_by_rows_other_than_their_own() -> None:
    random = np.random.default_rng(0)
    telling = pl.Series(
        [random.choice(["icu", "hospice"] if label else ["home", "rehab"]) for label in LABELS]
    )
    assert single_column_auroc("text", telling, LABELS) == 1.0
    codes = pl.Series([float(random.choice([2, 7] if label else [1, 5, 9])) for label in LABELS])
    assert single_column_auroc("number", codes, LABELS) > 0.97
    areas = [
        single_column_auroc(
            "text", pl.Series(random.choice(list("abcdefghijklmnopqrstuvwxyz"), ROWS)), LABELS
        )
        for _ in range(200)
    ]
    assert np.mean(areas) < 0.6  # an area of the rows' own labels would be about 0.8
    assert max(areas) < 0.9


def test_a_column_of_one_value_and_few_rows_have_no_area() -> None:
    assert single_column_auroc("number", pl.Series([1.0] * ROWS), LABELS) is None
    assert single_column_auroc("number", pl.Series(range(4), dtype=pl.Float64), LABELS[:4]) is None
    few = np.array([1, 1] + [0] * 58)
    assert single_column_auroc("number", pl.Series(np.arange(60.0)), few) is None
