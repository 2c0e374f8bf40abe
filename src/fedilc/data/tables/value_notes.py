"""Notes on cells whose meaning was decided while reading: limits, separators, infinite numbers, codes.

They are made where the tables are, so that no summary has to tell them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from fedilc.data.checks.missing_values import places, scale_codes
from fedilc.data.checks.notes import MISSING, Note
from fedilc.data.tables.column_values import LARGEST, beyond, column_values, numbers_of
from fedilc.data.tables.table_settings import TableSettings
from fedilc.data.tables.written_numbers import LIMIT

LIMITS = "are limits such as <5, and count as the limit itself"
SEPARATORS = "have a thousands separator or a decimal comma, and are read as numbers"


def written_cells(column: pl.Series, read: pl.Series) -> tuple[int, int]:
    """Return how many texts were read as numbers because they are limits, and because of their separators."""
    kept = numbers_of(read).is_not_null() & numbers_of(column).is_null()
    limit = column.str.contains(LIMIT).fill_null(False)
    return int((kept & limit).sum()), int((kept & ~limit).sum())


def value_notes(frames: Mapping[str, pl.DataFrame], settings: TableSettings) -> list[Note]:
    """Return a note per column and kind of cell, except for columns that are declared to hold names."""
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
                (MISSING, f"{name}={listed}"),
            )
        )
    return notes
