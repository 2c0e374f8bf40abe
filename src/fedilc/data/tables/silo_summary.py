"""The summary of a silo's table before training: counts, sums, squares and categories, never a row.

It also says how well each column alone predicts a binary label (`single_column_auroc`). Sums are exact
(`exact_sum`, `exact_squares`), and rounded only if the silo's owner or the run asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import frexp
from typing import Annotated, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from fedilc.data.checks.columns import column_code, is_identifier, names_patients
from fedilc.data.tables.column_values import Kind, column_values, names_of, numbers_of
from fedilc.data.tables.formats import MISSING
from fedilc.data.tables.label_rule import LabelRule, folded_label, label_names
from fedilc.data.tables.table_settings import MOST_ROWS, TableSettings

MOST_LEVELS = 100
MOST_DECLARED = 1000
MOST_COLUMNS = 10_000
MOST_CELLS = 40_000  # fewer than numbers of float32 with so many digits
DIGITS = 7  # binary, so that whole numbers up to 127 are exact, and others to 1.6 %
_FEWEST_ROWS = 20  # from which on texts that all differ are an identifier
_FEW_NUMBERS = 20  # different ones, which may then be categories
_LONGEST = 200
_AUROC_DIGITS = 2
_FEWEST_SCORED = 20  # rows that an area under the ROC curve needs
_FEWEST_PER_CLASS = 3
_FEW_VALUES = 20  # different ones, which may then be codes and not quantities
_FOLDS = 5
_MANTISSA_BITS = 53  # of float64
_SMALLEST = -126  # the exponent, by frexp, of the smallest normal number of float32, less 1
_LOWEST = 1126  # frexp gives exponents from -1073, so that no mantissa of 53 bits is shifted to the right
_LOW_BITS = 26  # a half of a mantissa has at most 27 bits, so int64 holds the sum of 2^36 of them
_SPLIT = 2.0**27 + 1  # by which Dekker splits a float64 into two halves of 26 bits
Exact = Annotated[str, Field(pattern=r"^-?\d{1,900}(/[1-9]\d{0,900})?$")]
Level = Annotated[str, Field(max_length=_LONGEST)]


class ColumnSummary(BaseModel):
    """One column of one silo.

    Attributes:
        name: the column's name.
        place: its position in the table.
        kind: the kind of its values.
        count: cells with a value.
        numbers: cells with a number that its sums count; 0 if they are too few, or identify rows.
        strays: cells with a text that is neither a number nor a mark of missing values.
        total: the sum of its numbers, exact, as a fraction.
        squares: the sum of their squares.
        histogram: its numbers, truncated to `DIGITS` binary digits, with how many there are (see
            `truncated_counts`); None unless numbers are scaled by quantiles.
        levels: its different values, if it holds names or few numbers; None if they are too many.
        other: whether it has further values, each of too few rows to be named.
        identifier: whether its values or its name are like those of an identifier; it then has no value and
            no sum.
        auroc: the AUROC of the column alone, values and missing cells taken together (see
            `single_column_auroc`); None if it has one value in every row.
        zero: whether all its numbers are 0.
        code: a number such as -9 or 999 that probably means a missing value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Annotated[str, Field(max_length=_LONGEST)]
    place: int = Field(ge=0)
    kind: Kind
    count: int = Field(ge=0)
    numbers: int = Field(0, ge=0)
    strays: int = Field(0, ge=0)
    total: Exact = "0"
    squares: Exact = "0"
    histogram: tuple[tuple[float, Annotated[int, Field(ge=1, le=MOST_ROWS)]], ...] | None = Field(
        None, max_length=MOST_CELLS
    )
    levels: tuple[Level, ...] | None = Field(None, max_length=MOST_DECLARED)
    other: bool = False
    identifier: bool = False
    auroc: float | None = Field(None, ge=0, le=1)
    zero: bool = False
    code: float | None = None

    @model_serializer(mode="wrap")
    def _as_recorded(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the content without a histogram if there is none: earlier silos recorded none."""
        return {key: value for key, value in dump(self).items() if key != "histogram" or value is not None}

    @property
    def sums(self) -> tuple[int, Fraction, Fraction]:
        """Return how many numbers there are, their sum and the sum of their squares."""
        return self.numbers, Fraction(self.total), Fraction(self.squares)


class SiloSummary(BaseModel):
    """The summary of one silo: its rows, its labels and its columns.

    Attributes:
        name: the silo's name.
        rows: rows with a label.
        unlabelled: rows without a label.
        labels: the rows of each value of the label, 0 if they are too few to be counted; empty if the
            label is a number.
        rare_labels: whether the label has further values, each of too few rows to be named.
        unit: the unit to which counts and sums are rounded; 1 if they are exact.
        columns: in the order of the table.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(max_length=500)]
    rows: int = Field(ge=1, le=MOST_ROWS)
    unlabelled: int = Field(0, ge=0, le=MOST_ROWS)
    labels: dict[Level, Annotated[int, Field(ge=0)]] = Field(max_length=MOST_LEVELS)
    rare_labels: bool = False
    unit: int = Field(default=1, ge=1, le=MOST_ROWS)
    columns: tuple[ColumnSummary, ...] = Field(max_length=MOST_COLUMNS)

    @property
    def label_levels(self) -> list[dict[str, int]]:
        """Return the rows of each value of the label as a list of one; none if no value can be named."""
        return [] if self.rare_labels and not self.labels else [self.labels]

    def column(self, name: str) -> ColumnSummary | None:
        """Return a column's summary, if the silo has it."""
        return next((column for column in self.columns if column.name == name), None)


def summarise(
    name: str,
    features: pl.DataFrame,
    label: pl.Series,
    settings: TableSettings,
    unlabelled: int = 0,
    *,
    listed: Sequence[str] | None = None,
    sent: bool = False,
) -> SiloSummary:
    """Return the summary of a silo's table; it does not depend on other silos.

    Args:
        name: the silo's name.
        features: its columns without the label.
        label: its label, with a value in every row.
        settings: those of the run, which the silo may have tightened.
        unlabelled: rows that were left out.
        listed: the columns that may be mentioned; None for all.
        sent: whether the summary leaves the silo; what only notes need is then coarser.
    """
    rule = LabelRule.parse(settings.label)
    if not sent:
        settings = settings.for_local(len(label))
    scores = rule.own_scores(label, settings.positive)
    columns = [
        _column(place, column, settings, scores, sent)
        for place, column in enumerate(features.get_columns())
        if listed is None or column.name in listed
    ]
    labels, rare = label_levels(rule, label, settings)
    found = SiloSummary(
        name=name,
        rows=len(label),
        unlabelled=unlabelled,
        labels=labels,
        rare_labels=rare,
        columns=tuple(columns),
    )
    return found if settings.round_survey is None else _rounded_labels(found, settings.round_survey)


def label_levels(rule: LabelRule, label: pl.Series, settings: TableSettings) -> tuple[dict[str, int], bool]:
    """Return how many rows have each value of a label, and whether there are values too rare to be named.

    A rare value that the run's settings name has 0 rows. There are no values if the label is a number.
    """
    levels = rule.levels(label)
    declared = settings.categories.get(rule.column, ())
    if not levels or (settings.positive is None and not declared and rule.is_number(levels, settings.loss)):
        return {}, False
    named = [*rule.classes, *declared, *([] if settings.positive is None else [settings.positive])]
    known = {folded_label(name) for name in label_names(pl.Series(named, dtype=pl.String))}
    frequent = {name: rows for name, rows in levels.items() if rows >= settings.min_category}
    rare = {name: 0 for name in levels if name not in frequent and folded_label(name) in known}
    return dict(sorted((frequent | rare).items())), len(frequent) + len(rare) < len(levels)


def columns_by_silo(summaries: Sequence[SiloSummary]) -> dict[str, dict[str, ColumnSummary]]:
    """Return the summaries of each column by silo, columns ordered by their lowest position, then by name."""
    found: dict[str, dict[str, ColumnSummary]] = {}
    for silo in summaries:
        for column in silo.columns:
            found.setdefault(column.name, {})[silo.name] = column
    order = sorted(found, key=lambda name: (min(part.place for part in found[name].values()), name))
    return {name: found[name] for name in order}


def _column(
    place: int, column: pl.Series, settings: TableSettings, scores: NDArray[Any] | None, sent: bool
) -> ColumnSummary:
    declared = column.name in settings.categorical or column.name in settings.categories
    given = settings.categories.get(column.name, ())
    kind, values = column_values(column, settings.missing, "plain" if declared else "likely", given)
    present = values.drop_nulls()
    base: dict[str, Any] = {"name": column.name, "place": place, "kind": kind, "count": len(present)}
    numbers = numbers_of(present).drop_nulls().to_numpy() if kind in ("number", "text") else np.empty(0)
    if kind == "text":
        marks = present.str.to_lowercase().is_in(list(MISSING))
        base["strays"] = len(present) - len(numbers) - int(marks.sum())
    base["identifier"] = column.name not in settings.keep and _identifies(column, kind, present, numbers)
    if kind in ("number", "text") and not base["identifier"]:
        base |= _values(column.name, kind, present, numbers, settings, sent)
    if scores is not None and not sent:
        base["auroc"] = single_column_auroc(kind, values, scores)
    elif scores is not None and not base["identifier"]:
        base["auroc"] = _sent_auroc(kind, values, scores, settings.min_category)
    found = ColumnSummary(**base)
    unit = settings.round_survey
    return found if unit is None else _rounded_column(found, unit, numbers)


def _values(
    name: str,
    kind: Kind,
    present: pl.Series,
    numbers: NDArray[np.float64],
    settings: TableSettings,
    sent: bool,
) -> dict[str, Any]:
    """Return sums of a column's numbers and its different values, each of enough rows."""
    base: dict[str, Any] = {}
    if len(numbers) >= settings.min_category:
        base["numbers"] = len(numbers)
        base["total"], base["squares"] = str(exact_sum(numbers)), str(exact_squares(numbers))
        base["zero"] = not bool(numbers.any())
        if settings.scaling == "robust" or not sent:
            least = max(settings.min_category, settings.round_survey or 1)
            base["histogram"] = truncated_counts(numbers, least)
        code = column_code(numbers)
        is_counted = code is not None and code[1]
        if code is not None and sent:
            is_counted = is_counted and int((numbers == code[0]).sum()) >= settings.min_category
        base["code"] = code[0] if code is not None and is_counted else None
    declared = name in settings.categorical or name in settings.categories
    most = MOST_DECLARED if declared else _FEW_NUMBERS if kind == "number" else MOST_LEVELS
    counts = names_of(present).alias("name").value_counts(name="rows")
    if len(counts) <= most or declared:
        named = counts.filter(pl.col("rows") >= settings.min_category)["name"]
        if len(named) <= most and int(named.str.len_chars().max() or 0) <= _LONGEST:  # type: ignore[arg-type]  # a length is an int
            base["levels"], base["other"] = tuple(sorted(named)), len(named) < len(counts)
    return base


def _identifies(column: pl.Series, kind: Kind, present: pl.Series, numbers: NDArray[np.float64]) -> bool:
    """Return whether the values or the name of a column are like those of an identifier."""
    if names_patients(column.name):
        return True
    if kind == "number":
        return is_identifier(column.name, column.dtype, numbers)
    return kind == "text" and present.n_unique() == len(present) >= _FEWEST_ROWS


def label_identifies(name: str, label: pl.Series) -> bool:
    """Return whether a label is an identifier, by which a run could choose single rows."""
    if label.dtype == pl.String:
        return _identifies(label.alias(name), "text", label, np.empty(0))
    return names_patients(name) or is_identifier(name, pl.Int64(), label.to_numpy())


def _near(count: int, unit: int) -> int:
    """Return the multiple of a unit that is nearest to a count."""
    return (2 * count + unit) // (2 * unit) * unit


def _rounded_labels(summary: SiloSummary, unit: int) -> SiloSummary:
    """Return a summary whose counts of rows are multiples of a unit; its columns are rounded before."""
    labels = {name: max(unit, _near(rows, unit)) if rows else 0 for name, rows in summary.labels.items()}
    rows, unlabelled = max(unit, _near(summary.rows, unit)), _near(summary.unlabelled, unit)
    update = {"rows": rows, "unlabelled": unlabelled, "labels": labels, "unit": unit}
    return summary.model_copy(update=update)


def _rounded_column(column: ColumnSummary, unit: int, numbers: NDArray[np.float64]) -> ColumnSummary:
    """Return a column whose counts are multiples of a unit, and its sums of the unit times half the range.

    So one more or one fewer patient changes no count or sum, unless it crosses the middle between two
    multiples. Sums are first scaled to the rounded count, so that means and deviations stay near; squares
    are rounded as those of distances from the mean. Half the range is rounded up to a power of two.
    """
    count, strays = _near(column.count, unit), _near(column.strays, unit)
    strays = min(strays, count)
    kept = min(_near(column.numbers, unit), count - strays)
    total = squares = Fraction(0)
    if kept:
        rows, total, squares = column.sums
        total *= Fraction(kept, rows)
        spread = max(Fraction(0), squares * Fraction(kept, rows) - total**2 / kept)
        half = float(numbers.max()) / 2 - float(numbers.min()) / 2
        if half > 0:
            step = Fraction(2) ** frexp(half)[1]
            total = round(total / (unit * step)) * unit * step
            spread = round(spread / (unit * step**2)) * unit * step**2
        squares = spread + total**2 / kept
    change: dict[str, Any] = {
        "count": count,
        "strays": strays,
        "numbers": kept,
        "total": str(total),
        "squares": str(squares),
    }
    if column.histogram is not None:
        rounded = tuple((value, _near(rows, unit)) for value, rows in column.histogram)
        change["histogram"] = rounded if kept else None
    return column.model_copy(update=change)


def _sent_auroc(kind: Kind, values: pl.Series, scores: NDArray[Any], least: int) -> float | None:
    """Return the area of a column alone with two digits; None if a class has too few rows.

    Missing cells do not count if they are too few.
    """
    present = values.is_not_null().to_numpy()
    few = 0 < present.sum() < least
    if 0 < (~present).sum() < least:
        values, scores = values.drop_nulls(), scores[present]
    if few or min((scores == 1).sum(), (scores != 1).sum()) < least:
        return None
    area = single_column_auroc(kind, values, scores)
    return None if area is None else round(area, _AUROC_DIGITS)


def single_column_auroc(kind: Kind, values: pl.Series, labels: NDArray[Any]) -> float | None:
    """Return the highest area under the ROC curve of a column alone, in either direction: 0.5 to 1.

    It tries whether a cell is missing; the numbers, without missing cells and with these below or above all
    others; and the names, or few different numbers, with a missing cell as a name too. A name's score is how
    often the label is 1 in other rows with that name. It is None if the column has one value in every row, or
    if there are too few rows for an area.
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
    if (kind == "text" and 2 * different <= len(values)) or (kind == "number" and different <= _FEW_VALUES):
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
    return min(ones, zeros) >= _FEWEST_PER_CLASS and ones + zeros >= _FEWEST_SCORED


def truncated(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers with so many binary digits, nearer to 0; as 0 if float32 has no such number.

    >>> truncated(np.array([127.9, -1.9999, 1e-50, 6.0]))
    array([127.       ,  -1.984375,   0.       ,   6.       ])
    """
    mantissas, exponents = np.frexp(values)
    cut = np.ldexp(np.trunc(mantissas * 2.0**DIGITS), exponents - DIGITS)
    return np.where(exponents > _SMALLEST, cut, 0.0)


def truncated_counts(values: NDArray[np.float64], least: int) -> tuple[tuple[float, int], ...]:
    """Return truncated numbers in ascending order, each with how many there are: at least `least`.

    Neighbours are put together from the lowest on until they are enough, what is left with the last ones, and
    count as the number in the middle of them. With `least` = 1 these are the counts of all truncated numbers,
    which may be added over silos.

    >>> truncated_counts(np.array([1.0, 2.0, 3.0, 4.0, 4.0, 9.0]), 2)
    ((1.0, 2), (4.0, 4))
    """
    found, rows = np.unique(truncated(values) + 0.0, return_counts=True)
    groups: list[list[tuple[float, int]]] = [[]]
    for value, count in zip(found.tolist(), rows.tolist(), strict=True):
        if sum(of for _, of in groups[-1]) >= least:
            groups.append([])
        groups[-1].append((value, count))
    if len(groups) > 1 and sum(of for _, of in groups[-1]) < least:
        last = groups.pop()
        groups[-1] += last
    return tuple((quantile(group, 1, 2), sum(of for _, of in group)) for group in groups if group)


def quantile(counts: Sequence[tuple[float, int]], part: int, of: int) -> float:
    """Return the lowest number that at least `part` / `of` of the numbers do not exceed.

    >>> quantile([(1.0, 2), (3.0, 3), (9.0, 1)], 3, 4)
    3.0
    """
    total, below = sum(rows for _, rows in counts), 0
    for value, rows in counts:
        below += rows
        if of * below >= part * total:
            return value
    raise AssertionError("there are no numbers")


def exact_sum(values: NDArray[np.float64]) -> Fraction:
    """Return the sum of finite numbers without rounding.

    >>> exact_sum(np.array([1e30, 1.0, -1e30]))
    Fraction(1, 1)
    """
    mantissas, exponents = np.frexp(values)
    whole = (mantissas * 2.0**_MANTISSA_BITS).astype(np.int64)
    total = 0
    for exponent in np.unique(exponents):
        part = whole[exponents == exponent]
        high, low = part >> _LOW_BITS, part & ((1 << _LOW_BITS) - 1)
        counted = (int(high.sum()) << _LOW_BITS) + int(low.sum())
        total += counted << (int(exponent) - _MANTISSA_BITS + _LOWEST)
    return Fraction(total, 1 << _LOWEST)


def exact_squares(values: NDArray[np.float64]) -> Fraction:
    """Return the sum of squares without rounding, except for parts below 1e-290.

    >>> exact_squares(np.array([1e8 + 1])) == (10**8 + 1) ** 2
    True
    """
    squares = values * values
    # Dekker: a value is head + tail, whose products are exact, so `errors` is what rounding lost.
    head = _SPLIT * values - (_SPLIT * values - values)
    tail = values - head
    errors = ((head * head - squares) + 2 * head * tail) + tail * tail
    return exact_sum(squares) + exact_sum(errors)
