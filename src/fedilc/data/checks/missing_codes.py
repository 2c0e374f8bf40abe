"""Recognise numbers such as -9 or 999 that probably mean a missing value."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CODES = np.array([-9.0, -99.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0])


def missing_code(numbers: NDArray[np.float64]) -> float | None:
    """Return a repeated -9, -99, 999, ... at the end of a column that stands out from its other numbers."""
    found = column_code(numbers)
    return found[0] if found is not None and found[2] else None


def column_code(values: NDArray[np.floating]) -> tuple[float, int, bool] | None:
    """Return a repeated -9, -99, 999, ... at an end of a column, how often, and whether it stands out."""
    if not len(values):
        return None
    found = None
    rest = values[~np.isin(values, CODES)]
    for code in (values.min(), values.max()):
        count = int((values == code).sum())
        if code in CODES and count > 1:
            far = _is_far(code, rest) or _is_frequent(code, count, rest)
            found = (float(code), count, far)
            if far:
                break
    return found


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
