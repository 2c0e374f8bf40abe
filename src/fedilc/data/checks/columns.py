"""Notes on columns that are probably mistakes: identifiers, codes, scales, pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedilc.data.checks.profile import Profile
from fedilc.errors import listed

_SCALES = 1e3
_MOST = 3


def column_notes(parts: Sequence[Profile], columns: Sequence[str]) -> list[str]:
    """Return notes on the inputs of silos and test set, which all have one shape."""
    kinds = [_answers(parts, columns), _identifiers(parts, columns), _codes(parts, columns), _pixels(parts)]
    if len(parts[0].shape) == 1:
        kinds += [_zeros(parts, columns), _scales(parts, columns), _units(parts, columns)]
    return [note for notes in kinds for note in _shortened(notes)]


def _answers(parts: Sequence[Profile], columns: Sequence[str]) -> list[str]:
    answers = [set(part.answers) for part in parts if len(part.labels) > 1]
    found = set.intersection(*answers) if answers else set[int]()
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
        f"{_column(place, columns)} differs in every row ({_in(names, parts)}), like an identifier; drop it "
        "if it says nothing about the case"
        for place, names in by_column.items()
        if 2 * len(names) >= large
    ]


def _codes(parts: Sequence[Profile], columns: Sequence[str]) -> list[str]:
    """Return a note per code, with its columns and how often each part has it."""
    places: dict[float, list[int]] = {}
    counts: dict[float, dict[str, int]] = {}
    meant = {(place, code) for part in parts for place, (code, _, far) in part.codes.items() if far}
    for part in parts:
        for place, (code, count, _) in part.codes.items():
            if (place, code) not in meant:
                continue
            places.setdefault(code, []).append(place)
            total = counts.setdefault(code, {})
            total[part.title] = total.get(part.title, 0) + count
    return [
        f"{code:g} probably means a missing value in "
        f"{listed([_column(place, columns) for place in dict.fromkeys(found)])}, in "
        f"{listed([f'{title} ({count} times)' for title, count in counts[code].items()])}; it is used as a "
        "number: fill or drop such cells"
        for code, found in sorted(places.items())
    ]


def _pixels(parts: Sequence[Profile]) -> list[str]:
    names = [part.title for part in parts if part.pixels]
    if not names:
        return []
    most = max(float(part.high.max()) for part in parts if part.pixels)
    largest = 255 if most <= 255 else 65535 if most <= 65535 else most
    return [f"inputs go up to {most:g} ({_in(names, parts)}), like pixels; divide them by {largest:g}"]


def _zeros(parts: Sequence[Profile], columns: Sequence[str]) -> list[str]:
    """Return notes on columns that are 0 throughout in some parts, and go well above 0 in all others."""
    low, high = np.array([part.low for part in parts]), np.array([part.high for part in parts])
    zero, above = (low == 0) & (high == 0), high > 10
    found = np.flatnonzero(zero.any(0) & above.any(0) & (zero | above).all(0))
    return [
        f"{_column(int(place), columns)} is 0 in every row of "
        f"{listed([part.title for part, is_zero in zip(parts, zero[:, place], strict=True) if is_zero])} and "
        f"up to {high[:, place].max():g} elsewhere; if that means a missing value, fill or drop it"
        for place in found
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


def _in(titles: Sequence[str], parts: Sequence[Profile]) -> str:
    everywhere = len(titles) == len(parts) > 1
    return "everywhere" if everywhere else f"in {listed(titles)}"


def _shortened(notes: list[str]) -> list[str]:
    if len(notes) <= _MOST + 1:
        return notes
    return [*notes[:_MOST], f"the same holds for {len(notes) - _MOST} more columns"]
