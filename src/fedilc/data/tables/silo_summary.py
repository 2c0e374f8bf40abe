"""The summary of a silo's table before training: counts, sums, squares and categories, never a row.

Sums are without rounding, so that the order of silos does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedilc.data.checks.identifiers import is_identifier
from fedilc.data.checks.missing_values import column_code
from fedilc.data.tables.column_values import Kind, column_values, names_of, numbers_of
from fedilc.data.tables.csv_reader import MISSING
from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.single_column import single_column_auroc

if TYPE_CHECKING:
    from fedilc.data.tables.silo_tables import TableSettings

MOST_LEVELS = 100
MOST_DECLARED = 1000
_FEW_NUMBERS = 20
_FEWEST_ROWS = 20
_LONGEST = 200
_MANTISSA_BITS = 53
_LOWEST = 1126
_LOW_BITS = 26
_SPLIT = 2.0**27 + 1

Exact = Annotated[str, Field(pattern=r"^-?\d{1,900}(/[1-9]\d{0,900})?$")]
Level = Annotated[str, Field(max_length=_LONGEST)]


class ColumnSummary(BaseModel):
    """One column of one silo.

    Attributes:
        name: of the column.
        place: its position in the table.
        kind: of its values.
        count: cells with a value.
        numbers: cells with a number.
        strays: cells with a text that is neither a number nor a mark of missing values.
        total: the sum of its numbers, exact, as a fraction.
        squares: the sum of their squares.
        levels: its different values, if it holds names or few numbers; None if they are too many.
        identifier: whether it differs in every row like an identifier.
        auroc: of the column alone, its values and missing cells taken together (see `single_column.py`); None
            if it has one value in every row.
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
    levels: tuple[Level, ...] | None = Field(None, max_length=MOST_DECLARED)
    identifier: bool = False
    auroc: float | None = Field(None, ge=0, le=1)
    zero: bool = False
    code: float | None = None

    @property
    def sums(self) -> tuple[int, Fraction, Fraction]:
        """Return how many numbers there are, their sum and the sum of their squares."""
        return self.numbers, Fraction(self.total), Fraction(self.squares)


class SiloSummary(BaseModel):
    """The summary of one silo: its rows, its labels and its columns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    rows: int = Field(ge=1)
    unlabelled: int = Field(0, ge=0)
    labels: dict[Level, Annotated[int, Field(ge=1)]] = Field(max_length=MOST_DECLARED)
    columns: tuple[ColumnSummary, ...]

    def column(self, name: str) -> ColumnSummary | None:
        """Return a column's summary, if the silo has it."""
        return next((column for column in self.columns if column.name == name), None)


def summarise(
    name: str, features: pl.DataFrame, label: pl.Series, settings: TableSettings, unlabelled: int = 0
) -> SiloSummary:
    """Return the summary of a silo's table; it does not depend on other silos."""
    rule = LabelRule.parse(settings.label)
    scores = rule.own_scores(label, settings.positive)
    declared = {*settings.categorical, *settings.categories}
    columns = [
        _column(place, column, column.name in declared, settings.missing, scores)
        for place, column in enumerate(features.get_columns())
    ]
    return SiloSummary(
        name=name,
        rows=len(features),
        unlabelled=unlabelled,
        labels=rule.levels(label),
        columns=tuple(columns),
    )


def columns_by_silo(summaries: Sequence[SiloSummary]) -> dict[str, dict[str, ColumnSummary]]:
    """Return the summaries of each column by silo, columns ordered by their lowest position, then by name."""
    found: dict[str, dict[str, ColumnSummary]] = {}
    for silo in summaries:
        for column in silo.columns:
            found.setdefault(column.name, {})[silo.name] = column
    order = sorted(found, key=lambda name: (min(part.place for part in found[name].values()), name))
    return {name: found[name] for name in order}


def _column(
    place: int, column: pl.Series, declared: bool, missing: Sequence[str], scores: NDArray[Any] | None
) -> ColumnSummary:
    kind, values = column_values(column, missing, "plain" if declared else "likely")
    present = values.drop_nulls()
    base: dict[str, Any] = {"name": column.name, "place": place, "kind": kind, "count": len(present)}
    base["auroc"] = None if scores is None else single_column_auroc(kind, values, scores)
    numbers = numbers_of(present).drop_nulls().to_numpy() if kind in ("number", "text") else np.empty(0)
    base["numbers"] = len(numbers)
    if kind == "text":
        marks = present.str.to_lowercase().is_in(list(MISSING))
        base["strays"] = len(present) - len(numbers) - int(marks.sum())
    if len(numbers):
        base["total"], base["squares"] = str(exact_sum(numbers)), str(exact_squares(numbers))
        base["zero"] = not bool(numbers.any())
        code = column_code(numbers)
        base["code"] = code[0] if code is not None and code[1] else None
    if kind == "number":
        base["identifier"] = not declared and is_identifier(column.name, column.dtype, numbers)
    elif kind == "text":
        different = present.n_unique()
        base["identifier"] = not declared and different == len(present) >= _FEWEST_ROWS
    most = MOST_DECLARED if declared else _FEW_NUMBERS if kind == "number" else MOST_LEVELS
    if kind in ("number", "text") and not base["identifier"]:
        levels = names_of(present).unique()
        if len(levels) <= most and int(levels.str.len_chars().max() or 0) <= _LONGEST:  # type: ignore[arg-type]  # a length is an int
            base["levels"] = tuple(sorted(levels))
    return ColumnSummary(**base)


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
    head = _SPLIT * values - (_SPLIT * values - values)
    tail = values - head
    errors = ((head * head - squares) + 2 * head * tail) + tail * tail
    return exact_sum(squares) + exact_sum(errors)
