"""How silos differ before training: sizes, labels, missing values and columns, from counts and sums alone.

Each silo describes itself by a `SiloDescription`: counts per class, and per column the missing cells, sums,
and counts per bin. Bins are common to all silos: they follow from the run's preprocessing (its federated mean
and deviation, or its categories), so no row leaves a silo. Between two silos,

    standardised mean difference   |mean_a - mean_b| / sqrt((var_a + var_b) / 2)
    population stability index     sum over bins of (p_a - p_b) ln(p_a / p_b)

A column of names has the largest difference of its categories' shares. Half a count is added to each bin, so
that an empty bin gives no infinity. Columns with fewer than 20 values in a silo are not compared with it.
Both numbers are above 0 by chance alone: the difference about sqrt(1/n_a + 1/n_b), the index about
(bins - 1) (1/n_a + 1/n_b). A shift is large if the index exceeds its chance value by more than 0.25, and the
difference exceeds both 0.25 and twice its chance value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from statistics import NormalDist
from typing import Annotated

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from fedilc.data.tables.column_values import names_of, numbers_of
from fedilc.data.tables.preprocessing import CategoryFeature, NumberFeature, Preprocessing
from fedilc.data.tables.silo_summary import SiloSummary
from fedilc.data.tables.silo_tables import SiloTable

LARGE_DIFFERENCE = 0.25
LARGE_INDEX = 0.25
FEWEST_VALUES = 20
_BINS = 10
_EDGES = tuple(NormalDist().inv_cdf(place / _BINS) for place in range(1, _BINS))

Count = Annotated[int, Field(ge=0)]


class ColumnDescription(BaseModel):
    """One column of one silo; `total` and `squares` are of numbers in units of the federation's deviation.

    `bins` are the rows per tenth of a normal distribution of the federation's mean and deviation, or per
    category with all other names last; none if they are not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    missing: Count
    count: Count
    total: float = 0.0
    squares: float = 0.0
    bins: tuple[Count, ...] = ()
    is_number: bool = True

    @property
    def mean(self) -> float:
        """Return the mean, in deviations from the federation's mean."""
        return self.total / self.count if self.count else math.nan

    @property
    def variance(self) -> float:
        """Return the biased variance, in units of the federation's."""
        return max(0.0, self.squares / self.count - self.mean**2) if self.count else math.nan


class SiloDescription(BaseModel):
    """What a silo says of itself: rows, rows per class (none for regression), and columns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    silo: str
    rows: Count
    classes: tuple[Count, ...]
    columns: tuple[ColumnDescription, ...]


def describe_silo(table: SiloTable, preprocessing: Preprocessing) -> SiloDescription:
    """Return the description of a silo's table under the federation's preprocessing."""
    classes = len(preprocessing.label.classes)
    counts = np.bincount(table.y.astype(int), minlength=classes)[:classes] if classes else ()
    columns = []
    for feature in preprocessing.features:
        absent = pl.Series(feature.name, [None] * len(table.frame))
        column = table.frame.get_column(feature.name, default=absent)
        _, values = feature.read(column, preprocessing.missing)
        if isinstance(feature, NumberFeature):
            numbers = numbers_of(values).drop_nulls().to_numpy()
            scaled = (feature.clipped(numbers) - feature.mean) / feature.scale
            bins = np.bincount(np.searchsorted(_EDGES, scaled, side="right"), minlength=_BINS).tolist()
            sums = math.fsum(scaled), math.fsum(scaled**2)
        else:
            names = names_of(values).drop_nulls().to_list()
            held = [names.count(category) for category in feature.categories]
            bins, sums = [*held, len(names) - sum(held)], (0.0, 0.0)
        columns.append(_describe_column(feature, len(values), sum(bins), sums, bins))
    return SiloDescription(
        silo=table.name, rows=len(table.y), classes=tuple(int(n) for n in counts), columns=tuple(columns)
    )


def describe_summary(summary: SiloSummary, preprocessing: Preprocessing) -> SiloDescription:
    """Return the description of a silo elsewhere from the summary that it sent: means, without bins."""
    columns = []
    for feature in preprocessing.features:
        column = summary.column(feature.name)
        count = 0 if column is None else column.count
        sums = 0.0, 0.0
        if column is not None and isinstance(feature, NumberFeature):
            rows, total, squares = column.sums
            mean, scale = Fraction(feature.mean), Fraction(feature.scale)
            centred = squares - 2 * mean * total + rows * mean**2
            sums = float((total - rows * mean) / scale), float(centred / scale**2)
        columns.append(_describe_column(feature, summary.rows, count, sums))
    classes = preprocessing.label.class_rows(summary.labels)
    if classes:
        # Rows whose label is none of the named classes belong to class 0.
        classes[0] += max(0, summary.rows - sum(classes))
    return SiloDescription(
        silo=summary.name, rows=summary.rows, classes=tuple(classes), columns=tuple(columns)
    )


def _describe_column(
    feature: NumberFeature | CategoryFeature,
    rows: int,
    count: int,
    sums: tuple[float, float],
    bins: Sequence[int] = (),
) -> ColumnDescription:
    return ColumnDescription(
        name=feature.name,
        missing=rows - count,
        count=count,
        total=sums[0],
        squares=sums[1],
        bins=tuple(bins),
        is_number=isinstance(feature, NumberFeature),
    )


def comparable(a: ColumnDescription, b: ColumnDescription) -> bool:
    """Return whether both silos have enough values of a column to compare it."""
    return min(a.count, b.count) >= FEWEST_VALUES and (a.is_number or bool(a.bins))


def mean_difference(a: ColumnDescription, b: ColumnDescription) -> float | None:
    """Return the standardised mean difference of a column between two silos; None with too few values.

    >>> one = ColumnDescription(name="age", missing=0, count=20, total=20.0, squares=40.0, bins=(10, 10))
    >>> two = ColumnDescription(name="age", missing=0, count=20, total=0.0, squares=20.0, bins=(10, 10))
    >>> mean_difference(one, two)
    1.0
    """
    if not comparable(a, b):
        return None
    if a.is_number:
        return _standardised(a.mean - b.mean, a.variance, b.variance)
    shares = [(x / a.count, y / b.count) for x, y in zip(a.bins, b.bins, strict=True)]
    return max(_standardised(p - q, p * (1 - p), q * (1 - q)) for p, q in shares)


def _standardised(difference: float, first: float, second: float) -> float:
    if difference == 0:
        return 0.0
    deviation = math.sqrt((first + second) / 2)
    return abs(difference) / deviation if deviation > 0 else math.inf


def stability_index(a: Sequence[int], b: Sequence[int]) -> float:
    """Return the population stability index of counts per bin, with half a count added to each bin.

    >>> stability_index([50, 50], [50, 50])
    0.0
    """
    first, second = (np.array(counts) + 0.5 for counts in (a, b))
    p, q = first / first.sum(), second / second.sum()
    return float(((p - q) * np.log(p / q)).sum())


class ColumnShift(BaseModel):
    """How far a column differs between silos: the largest of all pairs, and which pair it is.

    `large` says whether a pair differs by more than rules of thumb and chance allow. `missing` is the largest
    difference of the shares of missing cells.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    difference: float | None
    index: float | None
    pair: tuple[str, str]
    large: bool
    missing: float


def column_shifts(silos: Sequence[SiloDescription]) -> list[ColumnShift]:
    """Return every column's shift, the largest stability index first."""
    found = []
    for place, column in enumerate(silos[0].columns if silos else ()):
        pairs = []
        for a, b in combinations(silos, 2):
            one, two = a.columns[place], b.columns[place]
            index = stability_index(one.bins, two.bins) if one.bins and comparable(one, two) else None
            pairs.append((index, mean_difference(one, two), (a.silo, b.silo)))
        index, _, pair = max(pairs, key=lambda entry: (entry[0] or 0.0, entry[1] or 0.0))
        differences = [other for _, other, _ in pairs if other is not None]
        shares = [silo.columns[place].missing / silo.rows for silo in silos]
        found.append(
            ColumnShift(
                name=column.name,
                difference=max(differences, default=None),
                index=index,
                pair=pair,
                large=any(_is_large(a.columns[place], b.columns[place]) for a, b in combinations(silos, 2)),
                missing=max(shares) - min(shares),
            )
        )
    return sorted(found, key=lambda shift: (-(shift.index or 0.0), -(shift.difference or 0.0)))


def _is_large(a: ColumnDescription, b: ColumnDescription) -> bool:
    difference = mean_difference(a, b)
    if difference is None:
        return False
    chance = 1 / a.count + 1 / b.count
    if a.bins and stability_index(a.bins, b.bins) - (len(a.bins) - 1) * chance <= LARGE_INDEX:
        return False
    return difference > max(LARGE_DIFFERENCE, 2 * math.sqrt(chance))


def pair_shifts(silos: Sequence[SiloDescription]) -> dict[tuple[str, str], dict[str, float]]:
    """Return per pair of silos the mean stability index over columns, and that of the label."""
    found = {}
    for a, b in combinations(silos, 2):
        indices = [
            stability_index(one.bins, two.bins)
            for one, two in zip(a.columns, b.columns, strict=True)
            if one.bins and comparable(one, two)
        ]
        entry = {"columns": sum(indices) / len(indices)} if indices else {}
        if a.classes:
            entry["label"] = stability_index(a.classes, b.classes)
        found[a.silo, b.silo] = entry
    return found
