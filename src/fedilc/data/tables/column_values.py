"""Read a column as numbers or as names, and note cells that had to be interpreted, such as <5 and 1,234.5."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import polars as pl

from fedilc.data.checks.columns import places, scale_codes
from fedilc.data.checks.notes import MISSING as MISSING_NOTE
from fedilc.data.checks.notes import Note
from fedilc.data.tables.formats import MISSING
from fedilc.data.tables.table_settings import TableSettings

LIMIT = r"^\s*[<>≤≥]\s*=?\s*"
_SIGN = r"^[-+]?"
_PLAIN = _SIGN + r"(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_GROUPED_BY_COMMAS = _SIGN + r"[1-9]\d{0,2}(,\d{3})+(\.\d*)?$"
_GROUPED_BY_POINTS = _SIGN + r"[1-9]\d{0,2}(\.\d{3})+(,\d*)?$"
_DECIMAL_COMMA = _SIGN + r"\d*,\d+$"
_DECIMAL_POINT = _SIGN + r"\d*\.\d+$"
_ONE_GROUP = _SIGN + r"[1-9]\d{0,2}[.,]\d{3}$"
_NUMBER_SHARE = 0.8
Kind = Literal["number", "text", "empty", "beyond", "date", "other"]
Numbers = Literal["plain", "likely", "known"]
_BLANKS = {"", "na", "n/a", "#n/a", "nan", "null", "?", "."}
LARGEST = float(np.finfo(np.float32).max)
_DATE = r"^(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2}))([T ].*)?$"
LIMITS = "are limits such as <5, and count as the limit itself"
SEPARATORS = "have a thousands separator or a decimal comma, and are read as numbers"


def column_values(
    column: pl.Series, missing: Iterable[str] = (), numbers: Numbers = "plain", names: Iterable[str] = ()
) -> tuple[Kind, pl.Series]:
    """Return the kind of a column, and its values as Float64 or String with null for missing ones.

    A column whose every number is infinite or too large for float32 is "beyond".

    Args:
        column: a column of a table.
        missing: further texts or numbers that mean a missing value; "name=text" applies to one column only,
            and may list several: "name=8,9".
        numbers: "plain" if texts such as <5 and 1,234.50 are names; "likely" if they are numbers in a column
            of numbers; "known" if the column is known to hold numbers (see `plain_numbers`).
        names: known categories, so that a word such as "none" stays the category it was in training, and is
            not a missing value.

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
    cell = pl.col("cell")
    lower = cell.str.to_lowercase()
    is_known = lower.is_in(list(MISSING)) & ~cell.is_in(list(names))
    is_blank = lower.is_in(list(_BLANKS)).fill_null(True)
    found = pl.DataFrame([text.alias("cell")]).select(
        is_known.fill_null(True).alias("known"), pl.when(is_blank).then(None).otherwise(cell).alias("value")
    )
    numbers = numbers_of(text)
    if (numbers.is_not_null() | found["known"]).all():
        return "number", numbers
    values = found["value"].alias(column.name)
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
    numbers = numbers_of(column).alias("number")
    number, text = pl.col("number"), pl.col("text")
    whole = (number == number.round()) & (number.abs() < 2.0**53)
    written = [pl.when(whole).then(number).cast(pl.Int64).cast(pl.String), number.cast(pl.String)]
    if column.dtype == pl.String:
        written.append(text.str.strip_chars())
    # One query: small tables are summarised hundreds of times in a study, and each query has its price.
    return (
        pl.DataFrame([numbers, column.alias("text")])
        .select(pl.coalesce(written).alias(column.name))
        .to_series()
    )


def number_of(text: str) -> float | None:
    """Return a text as a number, or None if it is not one."""
    try:
        return float(text)
    except ValueError:
        return None


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return names in numeric order if all are numbers, otherwise in alphabetical order.

    >>> in_order(["10", "9", "2.5"]), in_order(["10", "9", "b"])
    (('2.5', '9', '10'), ('10', '9', 'b'))
    """
    try:
        return tuple(sorted(names, key=lambda name: (float(name), name)))
    except ValueError:
        return tuple(sorted(names))


def _finite(column: pl.Series) -> pl.Series:
    numbers = column.to_numpy()  # NaN for null
    return pl.Series(column.name, np.where(np.abs(numbers) <= LARGEST, numbers, np.nan), nan_to_null=True)


def plain_numbers(text: pl.Series, known: bool = False) -> pl.Series:
    """Return texts with numbers as Python writes them; a limit such as <5 becomes the limit itself.

    A column is changed only if 80 % of its cells are numbers then, and limits only if fewer different ones
    occur than other numbers, so that names such as "<18" and "18-64" remain. `known` says that the column
    holds numbers, so that both conditions are left out. The column decides what a comma means: 1,234 is a
    number only if another cell shows whether it means 1234 or 1.234.

    >>> plain_numbers(pl.Series(["1,234.50", "<5", "7", "8"])).to_list()
    ['1234.50', '5', '7', '8']
    >>> plain_numbers(pl.Series(["1,234", "850"])).to_list()
    ['1,234', '850']
    """
    cells = text.str.strip_chars()
    if cells.is_null().all() or not bool((cells.str.contains(LIMIT) | cells.str.contains(",")).any()):
        return text
    limits = cells.str.contains(LIMIT).fill_null(False)
    bare = _without_separators(cells.str.replace(LIMIT, ""))
    numbers = bare.str.contains(_PLAIN).fill_null(False)
    if not known and bare.filter(numbers & limits).n_unique() >= bare.filter(numbers & ~limits).n_unique():
        numbers &= ~limits
    missing = cells.str.to_lowercase().is_in(list(MISSING)).fill_null(True)
    if not known and int(numbers.sum()) < _NUMBER_SHARE * int((~missing).sum()):
        return text
    return pl.select(pl.when(numbers).then(bare).otherwise(cells).alias(text.name)).to_series()


def _without_separators(cells: pl.Series) -> pl.Series:
    """Return numbers with decimal points and no thousands separators, if the column shows which is which."""
    one_group = cells.str.contains(_ONE_GROUP)
    commas_group = (cells.str.contains(_GROUPED_BY_COMMAS) & ~one_group).any()
    points_group = (cells.str.contains(_GROUPED_BY_POINTS) & ~one_group).any()
    decimal_commas = (cells.str.contains(_DECIMAL_COMMA) & ~one_group).any()
    decimal_points = (cells.str.contains(_DECIMAL_POINT) & ~one_group).any()
    if (commas_group or decimal_points) and not (points_group or decimal_commas):
        return _where(cells, _GROUPED_BY_COMMAS, cells.str.replace_all(",", "", literal=True))
    if (points_group or decimal_commas) and not (commas_group or decimal_points):
        ungrouped = _where(cells, _GROUPED_BY_POINTS, cells.str.replace_all(".", "", literal=True))
        if not points_group:  # 1.234 beside 1,5 may be 1234 or 1.234
            ungrouped = _where(cells, _GROUPED_BY_POINTS, cells + " (unclear)")
        return ungrouped.str.replace(",", ".", literal=True)
    return cells


def _where(cells: pl.Series, pattern: str, changed: pl.Series) -> pl.Series:
    return pl.select(pl.when(cells.str.contains(pattern)).then(changed).otherwise(cells)).to_series()


def written_cells(column: pl.Series, read: pl.Series) -> tuple[int, int]:
    """Return how many texts were read as numbers because they are limits, and because of their separators."""
    kept = numbers_of(read).is_not_null() & numbers_of(column).is_null()
    limit = column.str.contains(LIMIT).fill_null(False)
    return int((kept & limit).sum()), int((kept & ~limit).sum())


def value_notes(frames: Mapping[str, pl.DataFrame], settings: TableSettings) -> list[Note]:
    """Return one note per column and kind of cell, except for columns that are declared to hold names."""
    names = {*settings.categorical, *settings.categories}
    by_column: dict[str, dict[str, pl.Series]] = {}
    for silo, frame in frames.items():
        for column in frame.get_columns():
            if column.name not in names:
                by_column.setdefault(column.name, {})[repr(silo)] = column
    return [note for name, parts in by_column.items() for note in _notes(name, parts, settings.missing)]


def _notes(name: str, parts: Mapping[str, pl.Series], missing: Sequence[str]) -> list[Note]:
    found: dict[str, dict[str, int]] = {"limit": {}, "separator": {}, "beyond": {}}
    codes: dict[str, tuple[int, ...]] = {}
    for silo, column in parts.items():
        if column.dtype == pl.String:
            read = column_values(column, missing, "likely")[1]
            found["limit"][silo], found["separator"][silo] = written_cells(column, read)
        elif column.dtype.is_numeric():
            kind, values = column_values(column, missing)
            found["beyond"][silo] = beyond(column) if kind != "beyond" else 0
            codes[silo] = scale_codes(values.drop_nulls().to_numpy())
    meanings = {
        "limit": LIMITS,
        "separator": SEPARATORS,
        "beyond": f"are infinite or above {LARGEST:.1g}, and count as missing; correct them",
    }
    notes = []
    for what, counts in found.items():
        some = [silo for silo, count in counts.items() if count]
        if some:
            cells = sum(counts.values())
            one = f"column {name!r}: {cells} cells ({places(some, parts)}) {meanings[what]}"
            notes.append(Note(one, f"{{}}: some cells {meanings[what]}", repr(name)))
    coded = sorted({code for several in codes.values() for code in several})
    if coded:
        some = [silo for silo, several in codes.items() if several]
        listed = ",".join(map(str, coded))
        notes.append(
            Note(
                f"column {name!r} is a scale from 1 up and also has {listed} ({places(some, parts)}), used "
                "as numbers; if they mean refused or unknown,",
                f"{{}} are scales from 1 up and also have {listed}, used as numbers; if they mean refused or "
                "unknown,",
                repr(name),
                (MISSING_NOTE, f"{name}={listed}"),
            )
        )
    return notes
