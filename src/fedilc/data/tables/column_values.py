"""The values of a column as numbers or as names, with null for missing values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import polars as pl

from fedilc.data.tables.csv_reader import MISSING
from fedilc.data.tables.written_numbers import plain_numbers

Kind = Literal["number", "text", "empty", "beyond", "date", "other"]
Numbers = Literal["plain", "likely", "known"]

_BLANKS = {"", "na", "n/a", "#n/a", "nan", "null", "?", "."}
LARGEST = float(np.finfo(np.float32).max)
_DATE = r"^(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2}))([T ].*)?$"


def column_values(
    column: pl.Series, missing: Iterable[str] = (), numbers: Numbers = "plain", names: Iterable[str] = ()
) -> tuple[Kind, pl.Series]:
    """Return the kind of a column, and its values as Float64 or String with null for missing ones.

    A column whose every number is infinite or too large for float32 is "beyond".

    Args:
        column: of a table.
        missing: further texts or numbers that mean a missing value; "name=text" is for one column alone, and
            may list several: "name=8,9".
        numbers: "plain" if texts such as <5 and 1,234.50 are names; "likely" if they are numbers in a column
            of numbers; "known" if the column is known to be one (see `written_numbers.py`).
        names: known categories, so that a word such as "none" is the category it was in training, and not a
            missing value, whatever the other cells hold.

    >>> kind, values = column_values(pl.Series("age", ["61", "?", "58.5"]))
    >>> kind, values.to_list()
    ('number', [61.0, None, 58.5])
    """
    kind, marks = column.dtype, [text for mark in missing for text in _marks(mark, column.name)]
    if kind.is_temporal():
        return "date", pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    if kind in (pl.String, pl.Categorical, pl.Enum):
        text = _unmarked(column.cast(pl.String), marks)
        found: tuple[Kind, pl.Series] = _from_text(
            text if numbers == "plain" else plain_numbers(text, numbers == "known"), names
        )
    elif kind.is_numeric() or kind in (pl.Boolean, pl.Null):
        found = "number", _finite(column.cast(pl.Float64))
    else:
        return "other", pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    sort, values = found[0], _unmarked(found[1], marks)
    if values.null_count() == len(values):
        return ("beyond" if beyond(column) else "empty"), values
    return sort, values


def beyond(column: pl.Series) -> int:
    """Return how many numbers of a column are infinite or too large for float32."""
    if not column.dtype.is_float():
        return 0
    return int((column.is_not_nan() & (column.abs() > LARGEST)).sum())  # polars orders NaN above all numbers


def _unmarked(values: pl.Series, marks: list[str]) -> pl.Series:
    """Return values with null for those that are among the marks of missing values."""
    if not marks:
        return values
    names = names_of(pl.Series(marks)).str.to_lowercase()
    hit = names_of(values).str.to_lowercase().is_in(names.to_list()).fill_null(False)
    return pl.select(pl.when(hit).then(None).otherwise(values).alias(values.name)).to_series()


def _marks(mark: str, column: str) -> list[str]:
    name, equals, text = mark.rpartition("=")
    if not equals:
        return [text]
    return [text, *text.split(",")] if name == column else []


def _from_text(column: pl.Series, names: Iterable[str]) -> tuple[Kind, pl.Series]:
    text = column.str.strip_chars()
    lower = text.str.to_lowercase()
    known = (lower.is_in(list(MISSING)) & ~text.is_in(list(names))).fill_null(True)
    numbers = numbers_of(text)
    if (numbers.is_not_null() | known).all():
        return "number", numbers
    blank = lower.is_in(list(_BLANKS)).fill_null(True)
    values = pl.select(pl.when(blank).then(None).otherwise(text).alias(column.name)).to_series()
    if bool(values.drop_nulls().str.contains(_DATE).all()):
        return "date", values
    return "text", values


def numbers_of(column: pl.Series) -> pl.Series:
    """Return a column as Float64, with null for everything but finite numbers."""
    if column.dtype == pl.String:
        column = column.str.strip_chars().str.strip_prefix("+")
    return _finite(column.cast(pl.Float64, strict=False))


def names_of(column: pl.Series) -> pl.Series:
    """Return a column as names; equal numbers have equal names, however they are written.

    >>> names_of(pl.Series(["1.0", "1", "one"])).to_list()
    ['1', '1', 'one']
    """
    numbers = numbers_of(column)
    whole = (numbers == numbers.round()) & (numbers.abs() < 2.0**53)
    text = column if column.dtype == pl.String else numbers.cast(pl.String)
    as_whole = pl.select(pl.when(whole).then(numbers).otherwise(None)).to_series().cast(pl.Int64)
    named = pl.coalesce(as_whole.cast(pl.String), numbers.cast(pl.String), text.str.strip_chars())
    return pl.select(named.alias(column.name)).to_series()


def number_of(text: str) -> float | None:
    """Return the number that a text is, if it is one."""
    try:
        return float(text)
    except ValueError:
        return None


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return names in numeric order if all are numbers, in alphabetic order if not.

    >>> in_order(["10", "9", "2.5"]), in_order(["10", "9", "b"])
    (('2.5', '9', '10'), ('10', '9', 'b'))
    """
    try:
        return tuple(sorted(names, key=lambda name: (float(name), name)))
    except ValueError:
        return tuple(sorted(names))


def _finite(column: pl.Series) -> pl.Series:
    usable = (column.is_finite() & (column.abs() <= LARGEST)).fill_null(False)
    return pl.select(pl.when(usable).then(column).otherwise(None).alias(column.name)).to_series()
