"""Recognise columns that only identify rows: patient numbers, counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import polars as pl

_FEWEST_ROWS = 20
_NAMES = ("mrn", "index", "patient", "subject", "record")
_PERSONS = {"name", "fullname", "firstname", "lastname", "surname", "mrn", "ssn", "medicalrecordnumber"}
_PERSONS |= {"patient", "patientid", "patientname", "patientno", "patientnumber", "subject", "subjectid"}
_EXACT = 2.0**24


def names_patients(column: str) -> bool:
    """Return whether a column is called as one that names patients, who may have several rows each.

    >>> names_patients("Patient_ID"), names_patients("ward")
    (True, False)
    """
    return "".join(letter for letter in column.casefold() if letter.isalnum()) in _PERSONS


def is_identifier(name: str, kind: pl.DataType, values: NDArray[np.float64]) -> bool:
    """Return whether a column of a file is an identifier."""
    whole = kind.is_integer() or bool(np.abs(values).max() < _EXACT)
    return whole and tells_rows_apart(values, name)


def tells_rows_apart(values: NDArray[np.floating], name: str = "") -> bool:
    """Return whether whole numbers differ in every row although some measurements would be equal.

    This is the case if they rise or fall from row to row, if their range is too small for so many rows to
    differ by chance (less than one case in 3,000), or if the column's name says so.

    >>> tells_rows_apart(np.arange(100.0)), tells_rows_apart(np.random.default_rng(0).normal(size=100))
    (True, False)
    """
    count = len(values)
    if count < _FEWEST_ROWS or not (values[:_FEWEST_ROWS] == np.round(values[:_FEWEST_ROWS])).all():
        return False
    ordered = np.sort(values)
    if (values != np.round(values)).any() or (np.diff(ordered) == 0).any():
        return False
    steps = np.diff(values)
    if (steps > 0).all() or (steps < 0).all():
        return True
    span = ordered[-1] - ordered[0] + 1
    lower = name.lower()
    return bool(count**2 > 16 * span) or lower.endswith("id") or lower in _NAMES


def identifier_columns(x: NDArray[np.float32], columns: Sequence[str]) -> list[int]:
    """Return the positions of the columns of a matrix that identify rows."""
    head = x[:_FEWEST_ROWS]
    whole = (head == np.round(head)).all(0) & (np.abs(x).max(0, initial=0) < _EXACT)
    differ = (np.diff(np.sort(head, 0), axis=0) != 0).all(0)
    names = dict(enumerate(columns))
    return [
        int(i) for i in np.flatnonzero(whole & differ) if tells_rows_apart(x[:, i], names.get(int(i), ""))
    ]
