"""Recognise columns that only identify rows, and numbers that probably mean a missing value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedilc.errors import listed

if TYPE_CHECKING:
    import polars as pl

_FEWEST_ROWS = 20
_NAMES = ("mrn", "index", "patient", "subject", "record")
_PERSONS = {"name", "fullname", "firstname", "lastname", "surname", "mrn", "ssn", "medicalrecordnumber"}
_PERSONS |= {"patient", "patientid", "patientname", "patientno", "patientnumber", "subject", "subjectid"}
_EXACT = 2.0**24  # below it, float32 holds every whole number exactly
CODES = np.array([-9.0, -99.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0])
_LARGE = 10.0  # the root mean square above which a 0 in every row stands out
_FIRST_CODE = 7  # of a scale from 1: 7, 8 and 9 stand for refused and unknown


def names_patients(column: str) -> bool:
    """Return whether the name of a column says that it identifies patients, who may have several rows each.

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
    # n numbers drawn from a range all differ with probability exp(-n^2 / (2 range)): exp(-8) is 1 in 2,981.
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


class ColumnFacts(NamedTuple):
    """What is known about a column at one silo.

    Attributes:
        code: a repeated -9, -99, 999, ... at an end of the column, if there is one.
        stands_out: whether that code is far from the other numbers, or far more frequent.
        zero: whether every number is 0.
        mean_square: the mean of the squared numbers.
    """

    code: float | None
    stands_out: bool
    zero: bool
    mean_square: float | Fraction


class MissingValue(NamedTuple):
    """A number that probably means a missing value, where it does so, and whether it is a 0 in every row."""

    number: float
    where: str
    zero: bool = False

    def sentence(self, column: str) -> str:
        """Return what is unusual in a column; what to do about it may follow."""
        if self.zero:
            return (
                f"{column} is 0 in every row of {self.where} and not elsewhere; if it means a missing value,"
            )
        code = f"{self.number:g}"
        return f"{code} probably means a missing value in {column} ({self.where}) and is used as a number;"


def missing_values(silos: Mapping[str, ColumnFacts]) -> list[MissingValue]:
    """Return the numbers of a column that probably mean a missing value.

    They are codes that stand out at one silo or more, and 0 if it is the only number at some silos while the
    numbers of all others are large.
    """
    codes = sorted({facts.code for facts in silos.values() if facts.code is not None and facts.stands_out})
    found = [
        MissingValue(code, places([silo for silo, facts in silos.items() if facts.code == code], silos))
        for code in codes
    ]
    zero = [silo for silo, facts in silos.items() if facts.zero]
    large = all(facts.zero or facts.mean_square > _LARGE**2 for facts in silos.values())
    if large and 0 < len(zero) < len(silos):
        found.append(MissingValue(0.0, listed(zero), zero=True))
    return found


def places(some: Sequence[str], every: Mapping[str, object] | Sequence[object]) -> str:
    """Return where something is: "everywhere", or "in" and the names of some silos."""
    return "everywhere" if len(some) == len(every) > 1 else f"in {listed(some)}"


def column_code(values: NDArray[np.floating]) -> tuple[float, bool] | None:
    """Return a repeated -9, -99, 999, ... at an end of a column, and whether it stands out."""
    if not len(values):
        return None
    found = None
    rest = values[~np.isin(values, CODES)]
    for code in (values.min(), values.max()):
        count = int((values == code).sum())
        if code in CODES and count > 1:
            found = float(code), _is_far(code, rest) or _is_frequent(code, count, rest)
            if found[1]:
                break
    return found


def scale_codes(values: NDArray[np.floating]) -> tuple[int, ...]:
    """Return those of 7, 8 and 9 that stand apart from a scale 1, 2, ... of at most six steps.

    Surveys use these codes for "refused" and "unknown". Each code occurs twice or more, and all codes
    together in at most a fifth of the cells. Scales from 0 are left alone, because counts of events look like
    them.

    >>> scale_codes(np.array([1.0, 2, 3, 4, 5, 3, 2, 4, 9, 9]))
    (9,)
    >>> scale_codes(np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 8, 9, 9]))
    ()
    """
    found, counts = np.unique(values, return_counts=True)
    steps = found[found < _FIRST_CODE]
    codes = found[found >= _FIRST_CODE]
    if not 2 <= len(steps) < _FIRST_CODE or not len(codes) or not np.isin(codes, (7, 8, 9)).all():
        return ()
    apart = codes[0] - steps[-1] >= 2
    often = counts[len(steps) :]
    if not apart or (steps != np.arange(1, len(steps) + 1)).any():
        return ()
    return tuple(map(int, codes)) if often.min() >= 2 and often.sum() <= len(values) / 5 else ()


def _is_far(code: float, rest: NDArray[np.floating]) -> bool:
    if not len(rest):
        return code < 0
    low, high = float(rest.min()), float(rest.max())
    span = max(high - low, 1.0)
    if code < 0:
        return low >= 0 or code < low - 2 * span
    return code > high + span


def _is_frequent(code: float, count: int, rest: NDArray[np.floating]) -> bool:
    """Return whether a number outside of the others' range occurs far more often than any of them."""
    if not len(rest) or rest.min() <= code <= rest.max() or count < 0.05 * (count + len(rest)):
        return False
    return bool(count >= 5 * np.unique(rest, return_counts=True)[1].max())
