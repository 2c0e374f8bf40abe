"""How well one column of a silo predicts a label of two classes: by its values and missing cells together."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedilc.data.tables.column_values import Kind, numbers_of

_FEWEST_ROWS = 20
_FEWEST_PER_CLASS = 3
_FEW_NUMBERS = 20  # different ones, which may then be codes and not quantities
_FOLDS = 5


def single_column_auroc(kind: Kind, values: pl.Series, labels: NDArray[Any]) -> float | None:
    """Return the highest area under the ROC curve of a column alone, in either direction: 0.5 to 1.

    Tried are whether a cell is missing; the numbers, where they are known and with missing cells below or
    above all of them; and the names, or few different numbers, where a missing cell is a name too. A name's
    score is how often the label is 1 in other rows of that name. It is None if the column has one value in
    every row, or if there are too few rows for an area.
    """
    positive = labels == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    different = values.n_unique()
    if different < 2 or not _enough(ones, zeros):
        return None
    gaps = values.is_null().to_numpy()
    areas = [0.5 + float(gaps[positive].mean() - gaps[~positive].mean()) / 2]
    if kind in ("number", "text"):
        numbers = (values if kind == "number" else numbers_of(values)).to_numpy()
        known = ~np.isnan(numbers)
        areas += _number_areas(numbers[known], positive[known], ones, zeros)
    best = max(max(area, 1 - area) for area in areas)
    if (kind == "text" and 2 * different <= len(values)) or (kind == "number" and different <= _FEW_NUMBERS):
        best = max(best, _name_area(values, positive))
    return best


def _number_areas(
    known: NDArray[np.float64], positive: NDArray[np.bool_], ones: int, zeros: int
) -> list[float]:
    """Return the areas of the numbers that are known, and with all other rows below or above them."""
    known_ones, known_zeros = int(positive.sum()), int((~positive).sum())
    ranks = _ranks(known)
    won = float(ranks[positive].sum()) - known_ones * (known_ones + 1) / 2
    gone_ones, gone_zeros = ones - known_ones, zeros - known_zeros
    even = gone_ones * gone_zeros / 2
    areas = [
        (won + known_ones * gone_zeros + even) / (ones * zeros),
        (won + gone_ones * known_zeros + even) / (ones * zeros),
    ]
    if _enough(known_ones, known_zeros):
        areas.append(won / (known_ones * known_zeros))
    return areas


def _name_area(values: pl.Series, positive: NDArray[np.bool_]) -> float:
    """Return the area of names scored by the label in four fifths of the rows, for the other fifth.

    Each fifth has its share of each class, so that names that say nothing have an area of about 0.5.
    """
    places = np.unique(values.rank("dense").fill_null(0).to_numpy(), return_inverse=True)[1]
    fold = np.empty(len(places), dtype=np.int64)
    for rows in (np.flatnonzero(positive), np.flatnonzero(~positive)):
        fold[rows] = np.arange(len(rows)) % _FOLDS
    held = places * _FOLDS + fold
    size = _FOLDS * (int(places.max()) + 1)
    rows_of, ones_of = np.bincount(held, minlength=size), np.bincount(held, positive, minlength=size)
    whole = [np.repeat(of.reshape(-1, _FOLDS).sum(1), _FOLDS) - of for of in (ones_of, rows_of)]
    scores = (whole[0] + positive.mean()) / (whole[1] + 1)
    ones = int(positive.sum())
    won = float(_ranks(scores[held])[positive].sum()) - ones * (ones + 1) / 2
    return won / (ones * (len(positive) - ones))


def _ranks(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks from 1; equal scores share the mean of theirs."""
    _, value, ties = np.unique(scores, return_inverse=True, return_counts=True)
    found: NDArray[np.float64] = (np.cumsum(ties) - (ties - 1) / 2)[value]
    return found


def _enough(ones: int, zeros: int) -> bool:
    return min(ones, zeros) >= _FEWEST_PER_CLASS and ones + zeros >= _FEWEST_ROWS
