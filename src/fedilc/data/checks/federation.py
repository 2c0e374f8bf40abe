"""Compare silos and test set before training: find problems, which stop it, and notes, which do not.

The notes are on rows in two places, on labels, and on columns: identifiers, missing values, scales, pixels.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedilc.algorithms.loss_registry import LossName, has_classes, task_of
from fedilc.data.checks.columns import missing_values, places
from fedilc.data.checks.profile import TEST, Profile, is_trained_on, overlaps, profile_of, same_rows
from fedilc.data.silo import Federation, Silo
from fedilc.errors import DataProblemsError, FedILCWarning, listed

_SCALES = 1e3  # the ratio from which on columns, or the units of one column, are noted
_MOST = 3  # notes of one kind that are shown
_MOST_LOGITS = 10_000


@dataclass
class Report:
    """The problems and notes of a federation's data, one sentence each."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def require(self) -> None:
        """Raise all problems in one error, if there are any."""
        if self.problems:
            raise DataProblemsError(self.problems)

    def warn(self) -> None:
        """Warn of each note."""
        for note in self.notes:
            warnings.warn(note, FedILCWarning, stacklevel=3)


def check_federation(federation: Federation) -> Report:
    """Compare the silos and the test set of a federation; do nothing if examples are streamed."""
    if any(silo.streamed for silo in federation.silos):
        return Report()
    silos = [profile_of(silo, federation.columns) for silo in federation.silos]
    test = None
    if federation.x_test is not None:
        test = profile_of(Silo(TEST, federation.x_test, federation.y_test), federation.columns)
    return compare(silos, test, federation.columns, federation.loss)


def silo_notes(
    silo: Silo, columns: Sequence[str], identifiers: Sequence[str], loss: LossName = "binary"
) -> list[str]:
    """Return notes on one silo, without knowledge of the others."""
    profile = profile_of(silo, columns, identifiers if columns else None)
    rows = overlaps([profile], None).values()
    loss = "binary" if has_classes(loss) else loss  # which classes other silos have is not known here
    return [*rows, *label_notes([profile], None, loss), *column_notes([profile], columns)]


def compare(
    silos: Sequence[Profile],
    test: Profile | None,
    columns: Sequence[str] = (),
    loss: LossName = "binary",
    prepared: bool = False,
) -> Report:
    """Return problems and notes of silos that train together and their test set.

    Inputs that were `prepared` get no notes on columns, classes and rows in two silos: their tables have
    them.
    """
    report = Report()
    same = [silo.title for silo in silos if test is not None and _is_test(silo, test)]
    if same:
        report.problems.append(
            f"the test set has the same rows as {_silos(same)}, so the model would be tested on its training "
            "data; leave them out of the silos, or give another test set"
        )
    else:
        shared = overlaps(silos, test)
        if test is not None and is_trained_on(silos, test):
            report.problems.append(shared.pop("test"))
        report.notes += [note for kind, note in shared.items() if not prepared or kind == "validation"]
    if prepared:
        return report
    report.notes += label_notes(silos, test, loss)
    every = [*silos, test] if test is not None else list(silos)
    report.notes += column_notes(every, columns)
    return report


def label_notes(silos: Sequence[Profile], test: Profile | None, loss: LossName) -> list[str]:
    """Return notes on silos with one row or one class, and on classes that no silo has."""
    notes = []
    single = [silo.title for silo in silos if len(silo.trained) == 1]
    if single:
        notes.append(f"{_have(single)} one training example only")
    if not has_classes(loss):
        return notes
    one = [silo for silo in silos if len(silo.trained) > 1 and len(silo.trained_labels) == 1]
    if one:
        names = [f"{silo.title} (label {next(iter(silo.trained_labels))})" for silo in one]
        notes.append(f"{_have(names)} training examples of one class only")
    if test is not None and len(test.labels) == 1 and task_of(loss) == "binary":
        notes.append(f"the test set has one class only (label {next(iter(test.labels))}), so it has no AUROC")
    if task_of(loss) == "multiclass":
        trained = trained_labels(silos)
        first = int(numbered_from_one(silos, test))
        missing = [str(label) for label in range(first, max(trained) + 1) if label not in trained]
        if missing:
            notes.append(
                f"no silo has an example of class {listed(missing, 5)}: labels up to {max(trained)} make "
                f"{max(trained) + 1 - first} logits, and {len(trained)} classes occur; number them 0, 1, 2, "
                "..."
            )
    return notes


def class_problems(silos: Sequence[Profile], test: Profile | None) -> list[str]:
    """Return problems of labels as class numbers; the highest one decides the number of logits."""
    trained = trained_labels(silos)
    logits = max(trained) + 1
    if logits > max(_MOST_LOGITS, 10 * len(trained)):
        return [
            f"labels up to {logits - 1} make {logits} logits, but only {len(trained)} classes occur; number "
            "the classes 0, 1, 2, ..., or correct data.label"
        ]
    every = [*silos, test] if test is not None else silos
    return [
        f"{part.subject} has the label {max(part.labels)}, but the model has {logits} logits for the classes "
        f"0 to {logits - 1} that silos train on; correct the label"
        for part in every
        if max(part.labels) >= logits
    ]


def numbered_from_one(silos: Sequence[Profile], test: Profile | None) -> bool:
    """Return whether class numbers begin at 1, in training, validation and test."""
    every = [*silos, test] if test is not None else silos
    return min(min(part.labels) for part in every) == 1


def trained_labels(silos: Sequence[Profile]) -> frozenset[int]:
    """Return the labels that occur among the training examples of some silo."""
    return frozenset[int]().union(*(silo.trained_labels for silo in silos))


def _is_test(silo: Profile, test: Profile) -> bool:
    return same_rows(test.cases, silo.cases) or same_rows(test.cases, silo.trained_cases)


def _silos(titles: Sequence[str]) -> str:
    return f"silo {titles[0]}" if len(titles) == 1 else f"silos {listed(titles)}"


def _have(titles: Sequence[str]) -> str:
    return f"{_silos(titles)} {'has' if len(titles) == 1 else 'have'}"


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
