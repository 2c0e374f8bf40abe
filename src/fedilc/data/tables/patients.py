"""Patients with several rows: whose each row is, and who is at several silos."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedilc.data.tables.column_values import column_values, names_of
from fedilc.errors import DataError, listed, nearest

Patients = NDArray[np.intp]


def patient_numbers(rows: pl.DataFrame, column: str, where: str) -> Patients | None:
    """Return whose each row is, by number from 0; None if no patient has several rows.

    A row without a value is taken as a patient of its own.

    >>> patient_numbers(pl.DataFrame({"mrn": ["b", "a", None, "b", None]}), "mrn", "the table")
    array([1, 0, 2, 1, 3])
    >>> patient_numbers(pl.DataFrame({"mrn": ["b", "a"]}), "mrn", "the table") is None
    True
    """
    names = _names(rows, column, where)
    known = names.drop_nulls().unique().sort()
    found = names.replace_strict(known, np.arange(len(known)), default=None, return_dtype=pl.Int64)
    gaps = names.is_null().to_numpy()
    places = found.fill_null(0).to_numpy().astype(np.intp)
    places[gaps] = len(known) + np.arange(gaps.sum())
    return places if len(known) + int(gaps.sum()) < len(rows) else None


def patients_at_several(silos: Mapping[str, pl.DataFrame], column: str) -> str | None:
    """Return a sentence on patients that are at more than one silo; None if there are none."""
    homes: dict[str, str] = {}
    shared: dict[str, None] = {}
    for silo, rows in silos.items():
        for name in _names(rows, column, f"silo {silo!r}").drop_nulls().unique().sort():
            if homes.setdefault(name, silo) != silo:
                shared[name] = None
    if not shared:
        return None
    counted = "1 value" if len(shared) == 1 else f"{len(shared)} values"
    verb = "is" if len(shared) == 1 else "are"
    return f"{counted} of {column!r} ({listed(list(shared))}) {verb} at more than one silo"


def _names(rows: pl.DataFrame, column: str, where: str) -> pl.Series:
    if column not in rows.columns:
        raise DataError(
            f"{where} has no column {column!r} that names patients{nearest(column, rows.columns)}"
        )
    return names_of(column_values(rows[column])[1])
