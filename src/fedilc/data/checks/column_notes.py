"""Notes on columns of numbers that are probably mistakes: identifiers, missing values, scales, pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedilc.data.checks.missing_values import missing_values, places
from fedilc.data.checks.profile import Profile

_SCALES = 1e3
_MOST = 3


def column_notes(parts: Sequence[Profile], columns: Sequence[str]) -> list[str]:
    """Return notes on the inputs of silos and test set, which all have one shape."""
    kinds = [_label_columns(parts, columns), _identifiers(parts, columns), _pixels(parts)]
    if len(parts[0].shape) == 1:
        kinds += [_missing_values(parts, columns), _scales(parts, columns), _units(parts, columns)]
    return [note for notes in kinds for note in _shortened(notes)]


def _label_columns(parts: Sequence[Profile], columns: Sequence[str]) -> list[str]:
    label_columns = [set(part.label_columns) for part in parts if len(part.labels) > 1]
    found = set.intersection(*label_columns) if label_columns else set[int]()
    return [
        f"{_column(place, columns)} is the label itself, or determines it exactly; drop it, or the model "
        "learns nothing else"
        for place in sorted(found)
    ]


def _identifiers(parts: Sequence[Profile], columns: Sequence[str]) -> list[str]:
    by_column: dict[int, list[str]] = {}
    for part in parts:
        for place in part.identifiers:
            by_column.setdefault(place, []).append(part.title)
    large = sum(len(part.rows) >= 20 for part in parts)
    return [
        f"{_column(place, columns)} differs in every row ({places(names, parts)}), like an identifier; drop "
        "it if it says nothing about the case"
        for place, names in by_column.items()
        if 2 * len(names) >= large
    ]


def _pixels(parts: Sequence[Profile]) -> list[str]:
    names = [part.title for part in parts if part.pixels]
    if not names:
        return []
    most = max(float(part.high.max()) for part in parts if part.pixels)
    largest = 255 if most <= 255 else 65535 if most <= 65535 else most
    return [f"inputs go up to {most:g} ({places(names, parts)}), like pixels; divide them by {largest:g}"]


def _missing_values(parts: Sequence[Profile], columns: Sequence[str]) -> list[str]:
    zero = np.array([(part.low == 0) & (part.high == 0) for part in parts])
    coded = {place for part in parts for place in part.codes}
    return [
        f"{found.sentence(_column(place, columns))} fill or drop such cells"
        for place in sorted(coded.union(np.flatnonzero(zero.any(0) & ~zero.all(0)).tolist()))
        for found in missing_values({part.title: part.column(place) for part in parts})
    ]


def _scales(parts: Sequence[Profile], columns: Sequence[str]) -> list[str]:
    """Return a note if the largest column is 1e3 times the smallest, or more."""
    sizes = _sizes(parts)
    whole = sizes.max(0)
    if not (whole > 0).any():
        return []
    large, small = int(whole.argmax()), int(np.where(whole > 0, whole, np.inf).argmin())
    if whole[large] < _SCALES * whole[small]:
        return []
    where = parts[int(sizes[:, large].argmax())].title
    return [
        f"{_column(large, columns)} is up to {whole[large]:g} (in {where}) and {_column(small, columns)} up "
        f"to {whole[small]:g}; standardise the columns, or the large ones dominate the small ones"
    ]


def _units(parts: Sequence[Profile], columns: Sequence[str]) -> list[str]:
    """Return notes on columns that are 1e3 times larger in one part than in another, or more."""
    sizes = _sizes(parts)
    filled = np.where(sizes > 0, sizes, np.inf).min(0)
    notes = []
    for place in np.flatnonzero(sizes.max(0) >= _SCALES * filled):
        high, low = int(sizes[:, place].argmax()), int(np.where(sizes > 0, sizes, np.inf)[:, place].argmin())
        notes.append(
            f"{_column(int(place), columns)} is up to {sizes[high, place]:g} in {parts[high].title} and up "
            f"to {sizes[low, place]:g} in {parts[low].title}; give it in one unit"
        )
    return notes


def _sizes(parts: Sequence[Profile]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array([np.maximum(np.abs(part.low), np.abs(part.high)) for part in parts])


def _column(place: int, columns: Sequence[str]) -> str:
    return f"column {columns[place]!r}" if columns else f"column {place}"


def _shortened(notes: list[str]) -> list[str]:
    if len(notes) <= _MOST + 1:
        return notes
    return [*notes[:_MOST], f"the same holds for {len(notes) - _MOST} more columns"]
