"""The values of a column as numbers or as names, with null for missing values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import polars as pl

from fedilc.data.tables.csv_reader import MISSING

Kind = Literal["number", "text", "empty", "date", "other"]

_BLANKS = {"", "na", "n/a", "#n/a", "nan", "null", "?", "."}
_LARGEST = float(np.finfo(np.float32).max)
_DATE = r"^(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2}))([T ].*)?$"


def column_values(column: pl.Series, missing: Iterable[str] = ()) -> tuple[Kind, pl.Series]:
    """Return the kind of a column, and its values as Float64 or String with null for missing ones.

    `missing` has further texts or numbers that mean a missing value; "name=text" is for one column alone, and
    may list several: "name=8,9".

    >>> kind, values = column_values(pl.Series("age", ["61", "?", "58.5"]))
    >>> kind, values.to_list()
    ('number', [61.0, None, 58.5])
    """
    kind = column.dtype
    if kind.is_temporal():
        return "date", pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    if kind in (pl.String, pl.Categorical, pl.Enum):
        found: tuple[Kind, pl.Series] = _from_text(column.cast(pl.String))
    elif kind.is_numeric() or kind in (pl.Boolean, pl.Null):
        found = "number", _finite(column.cast(pl.Float64))
    else:
        return "other", pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    sort, values = found
    marks = [text for mark in missing for text in _marks(mark, column.name)]
    if marks:
        names = names_of(pl.Series(marks)).str.to_lowercase()
        hit = names_of(values).str.to_lowercase().is_in(names.to_list()).fill_null(False)
        values = pl.select(pl.when(hit).then(None).otherwise(values).alias(column.name)).to_series()
    return ("empty" if values.null_count() == len(values) else sort), values


def _marks(mark: str, column: str) -> list[str]:
    name, equals, text = mark.rpartition("=")
    if not equals:
        return [text]
    return [text, *text.split(",")] if name == column else []


def _from_text(column: pl.Series) -> tuple[Kind, pl.Series]:
    text = column.str.strip_chars()
    lower = text.str.to_lowercase()
    known = lower.is_in(list(MISSING)).fill_null(True)
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
    usable = (column.is_finite() & (column.abs() <= _LARGEST)).fill_null(False)
    return pl.select(pl.when(usable).then(column).otherwise(None).alias(column.name)).to_series()
