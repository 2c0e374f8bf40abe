"""The profile of a silo's examples, by which silos are compared, and the search for rows in two places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from fedilc.data.checks.columns import CODES, ColumnFacts, column_code, identifier_columns
from fedilc.data.inputs import Examples, Several, Streamed
from fedilc.data.silo import Silo
from fedilc.errors import listed

Hashes = NDArray[np.int64]
_CHUNK = 1 << 14
_MORE_THAN_CHANCE = 10  # times the number of equal rows that chance explains
_NEARLY_ALL = 0.9
_SAMPLE = 50  # rows per silo, for estimates
TEST = "the test set"


@dataclass(frozen=True)
class Profile:
    """The facts about the examples of a silo, or of the test set, by which they are compared.

    Args:
        name: the silo's name.
        trained: hashes of the inputs of the training rows; for a test set, of all rows.
        held_out: hashes of the inputs of the validation rows.
        trained_cases: hashes of the training rows, with their labels.
        cases: hashes of all rows, with their labels.
        labels: how often each label occurs among all rows.
        trained_labels: the labels that occur in training.
        shape: the shape of one input.
        low: the lowest value of each column, or of all inputs if they are not a table.
        high: the highest value, in the same way.
        mean_squares: the mean of the squares of each column; none if inputs are not a table.
        codes: per column, a number such as -999 at one end of it, and whether it stands out.
        identifiers: the positions of columns that identify rows.
        label_columns: the positions of columns that are the label itself, or say it in other numbers.
        pixels: whether inputs are numbers from 0 to 255 or more, like those of images.
        sample: some rows, to estimate which overlaps are chance.
        file: the file that it was read from.
    """

    name: str
    trained: Hashes
    held_out: Hashes
    trained_cases: Hashes
    cases: Hashes
    labels: Mapping[int, int]
    trained_labels: frozenset[int]
    shape: tuple[int, ...]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    mean_squares: NDArray[np.float64]
    codes: Mapping[int, tuple[float, bool]]
    identifiers: tuple[int, ...]
    label_columns: tuple[int, ...]
    pixels: bool
    sample: NDArray[np.float32] = field(repr=False)
    file: str = ""

    @property
    def title(self) -> str:
        """Return its name inside a sentence."""
        return self.name if self.name == TEST else repr(self.name)

    @property
    def subject(self) -> str:
        """Return its name at the beginning of a sentence."""
        return self.name if self.name == TEST else f"silo {self.name!r}"

    def column(self, place: int) -> ColumnFacts:
        """Return what is known of a column."""
        code, stands_out = self.codes.get(place, (None, False))
        zero = bool(self.low[place] == self.high[place] == 0)
        return ColumnFacts(code, stands_out, zero, float(self.mean_squares[place]))

    @cached_property
    def rows(self) -> Hashes:
        """Return hashes of the inputs of all rows."""
        return np.concatenate([self.trained, self.held_out])


def profile_of(
    silo: Silo, columns: Sequence[str] = (), identifiers: Sequence[str] | None = None, file: str = ""
) -> Profile:
    """Return the profile of a silo; `identifiers` are the columns that are known to identify rows."""
    x, y = _array(silo.x), _array(silo.y)
    trained = row_hashes(x)
    trained_cases = cases = with_labels(trained, y)
    held_out = np.empty(0, dtype=np.int64)
    every, labels = [x], y
    if silo.x_val is not None and silo.y_val is not None:
        x_val, y_val = _array(silo.x_val), _array(silo.y_val)
        held_out = row_hashes(x_val)
        cases = np.concatenate([cases, with_labels(held_out, y_val)])
        every, labels = [x, x_val], np.concatenate([y, y_val])
    table = x.ndim == 2
    low, high = _extremes(every, table)
    values, counts = np.unique(labels, return_counts=True)
    if identifiers is None:
        known = tuple(identifier_columns(x, columns)) if table else ()
    else:
        known = tuple(columns.index(name) for name in identifiers)
    return Profile(
        name=silo.name,
        trained=trained,
        held_out=held_out,
        trained_cases=trained_cases,
        cases=cases,
        labels={int(value): int(count) for value, count in zip(values, counts, strict=True)},
        trained_labels=frozenset(int(value) for value in np.unique(y)),
        shape=tuple(x.shape[1:]),
        low=low,
        high=high,
        mean_squares=_mean_squares(every) if table else np.empty(0),
        codes=_codes(every, low, high) if table else {},
        identifiers=known,
        label_columns=_label_columns(x, y) if table else (),
        pixels=_has_pixels(silo.x) if isinstance(silo.x, Several) else _is_pixels(x, low, high),
        sample=sample_rows(x, _SAMPLE),
        file=file,
    )


def _array(x: Examples) -> NDArray[np.float32]:
    """Return inputs as one array; several are joined into one row per example, which is not a table."""
    assert not isinstance(x, Streamed), "streamed examples are not compared"
    if isinstance(x, Several):
        x = torch.cat([part.reshape(len(x), 1, -1).float() for part in x.tensors], dim=2)
    found: NDArray[np.float32] = x.detach().cpu().float().numpy()
    return found


def _extremes(
    parts: Sequence[NDArray[np.float32]], table: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    axis = 0 if table else None
    low = np.min([part.min(axis) for part in parts], axis=0)
    high = np.max([part.max(axis) for part in parts], axis=0)
    return np.atleast_1d(low).astype(np.float64), np.atleast_1d(high).astype(np.float64)


def _mean_squares(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    sums = [np.einsum("ij,ij->j", part, part, dtype=np.float64) for part in parts]
    means: NDArray[np.float64] = np.sum(sums, axis=0) / sum(map(len, parts))
    return means


def _codes(
    parts: Sequence[NDArray[np.float32]], low: NDArray[np.float64], high: NDArray[np.float64]
) -> dict[int, tuple[float, bool]]:
    """Return the columns that end with a repeated -9, -99, 999, ..., and whether that stands out.

    Such a number is the lowest or the highest of its column, so only few columns need a closer look.
    """
    found = {}
    for place in np.flatnonzero(np.isin(low, CODES) | np.isin(high, CODES)):
        code = column_code(np.concatenate([part[:, place] for part in parts]))
        if code is not None:
            found[int(place)] = code
    return found


def _label_columns(x: NDArray[np.float32], y: NDArray[np.float32]) -> tuple[int, ...]:
    """Return the positions of columns with one value per label, another one for each label."""
    labels, first, number = np.unique(y, return_index=True, return_inverse=True)
    if not 2 <= len(labels) <= len(y) / 4:
        return ()
    values = x[first]
    differ = (np.diff(np.sort(values, axis=0), axis=0) != 0).all(0)
    places = np.flatnonzero(differ & (x[:_SAMPLE] == values[number[:_SAMPLE]]).all(0))
    same = (x[:, places] == values[:, places][number]).all(0)
    return tuple(int(place) for place in places[same])


def _has_pixels(x: Several) -> bool:
    """Return whether one of several inputs is images with unscaled pixels."""
    images = [_array(part) for part in x.tensors if part.dim() > 2]
    return any(_is_pixels(image, *_extremes([image], table=False)) for image in images)


def _is_pixels(x: NDArray[np.float32], low: NDArray[np.float64], high: NDArray[np.float64]) -> bool:
    """Return whether inputs are unscaled pixels: images, or many columns of bytes."""
    if low.min() < 0 or high.max() < 128:
        return False
    if x.ndim > 2:
        return True
    if x.shape[1] < 64 or high.max() > 255:
        return False
    some = x[:_SAMPLE]
    return bool((some == np.round(some)).all())


def row_hashes(x: NDArray[np.float32]) -> Hashes:
    """Return a 64-bit hash of each example's inputs; equal inputs have equal hashes.

    Hashes can only be compared within a process, because Python seeds `hash` anew in each.
    """
    found = np.empty(len(x), dtype=np.int64)
    for start in range(0, len(x), _CHUNK):
        block = _rows(x[start : start + _CHUNK])
        raw, width = block.tobytes(), block.shape[1] * block.itemsize
        found[start : start + _CHUNK] = [hash(raw[i : i + width]) for i in range(0, len(raw), width)]
    return found


def with_labels(hashes: Hashes, y: NDArray[np.float32]) -> Hashes:
    """Return hashes of inputs and labels together."""
    bits = (y.astype(np.float32) + np.float32(0)).view(np.int32).astype(np.int64)
    return hashes ^ (bits * np.int64(0x9E3779B97F4A7C1))


def _rows(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return inputs as a matrix, with -0 replaced by 0."""
    return x.reshape(len(x), -1) + np.float32(0)


def same_rows(one: Hashes, other: Hashes) -> bool:
    """Return whether two sets of examples are the same, in any order."""
    return len(one) == len(other) and bool((np.sort(one) == np.sort(other)).all())


def sample_rows(x: NDArray[np.float32], most: int) -> NDArray[np.float32]:
    """Return at most `most` rows, evenly spread over a set of examples, for `chance`."""
    return _rows(x[:: max(1, len(x) // most)][:most])


def chance(samples: Sequence[NDArray[np.float32]]) -> float:
    """Return the probability that two examples have equal inputs by chance, if columns are independent.

    Rows of a few yes/no columns are often equal; rows of measurements are not.
    """
    rows = np.concatenate(samples)
    probability = 1.0
    for column in rows.T:
        counts = np.unique(column, return_counts=True)[1]
        probability *= float((counts * (counts - 1)).sum()) / (len(column) * max(1, len(column) - 1))
        if probability < 1e-12:
            break
    return probability


def is_trained_on(silos: Sequence[Profile], test: Profile) -> bool:
    """Return whether nearly all rows of the test set, with their labels, are in silos, and not by chance."""
    cases = np.unique(np.concatenate([silo.cases for silo in silos]))
    tested = int(np.isin(test.cases, cases).sum())
    if tested < _NEARLY_ALL * len(test.rows):
        return False
    equal = chance([silo.sample for silo in silos[:: max(1, len(silos) // 100)]])
    return tested > _MORE_THAN_CHANCE * equal * sum(len(silo.rows) for silo in silos) * len(test.rows)


def overlaps(silos: Sequence[Profile], test: Profile | None) -> dict[str, str]:
    """Return a note per kind of overlap: "test", "silos", "validation"; none if chance explains it."""
    unique = [np.unique(silo.rows) for silo in silos]
    rows, times = np.unique(np.concatenate(unique), return_counts=True)
    twice = rows[times > 1]
    within = {s.name: n for s in silos if (n := int(np.isin(s.held_out, s.trained).sum()))}
    tested = 0 if test is None else int(np.isin(test.rows, rows).sum())
    if not (within or len(twice) or tested):
        return {}
    equal = _MORE_THAN_CHANCE * chance([silo.sample for silo in silos[:: max(1, len(silos) // 100)]])
    total = sum(len(silo.rows) for silo in silos)
    notes = {}
    if test is not None and tested > equal * total * len(test.rows):
        counts = {s.name: int(np.isin(test.rows, one).sum()) for s, one in zip(silos, unique, strict=True)}
        notes["test"] = (
            f"{tested} of the {len(test.rows)} rows of the test set are also in {_counted(counts)}; a test "
            "on training rows is too optimistic: keep each row on one side"
        )
    if len(twice) > equal * total**2 / 2:
        counts = {s.name: int(np.isin(one, twice).sum()) for s, one in zip(silos, unique, strict=True)}
        notes["silos"] = (
            f"{len(twice)} rows are in more than one silo: {_counted(counts)}; if they are the same cases, "
            "keep each in one silo"
        )
    pairs = sum(len(silo.held_out) * len(silo.trained) for silo in silos)
    if sum(within.values()) > equal * pairs:
        held_out = sum(len(silo.held_out) for silo in silos)
        notes["validation"] = (
            f"{sum(within.values())} of the {held_out} validation rows are also training rows of their silo: "
            f"{_counted(within)}; if they are the same cases, drop the repeated rows"
        )
    return notes


def _counted(counts: Mapping[str, int]) -> str:
    found = sorted((-count, name) for name, count in counts.items() if count)
    return listed([f"{name!r} ({-count})" for count, name in found])
