"""Compare silos and test set before training: find problems, which stop it, and notes, which do not."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedilc.algorithms.loss_name import LossName, has_classes, task_of
from fedilc.data.checks.column_notes import column_notes
from fedilc.data.checks.profile import TEST, Profile, profile_of
from fedilc.data.checks.shared_rows import is_trained_on, overlaps, same_rows
from fedilc.data.silo import Federation, Silo
from fedilc.errors import DataProblemsError, FedILCWarning, listed

_MOST_LOGITS = 10_000


@dataclass
class Report:
    """The problems and notes of a federation's data, a sentence each."""

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
    """Compare the silos and the test set of a federation; nothing if examples are streamed."""
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

    Inputs that were `prepared` have no notes on columns, classes and rows of two silos: their tables have.
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
    """Return problems of labels as class numbers, whose highest decides the number of logits."""
    trained = trained_labels(silos)
    logits = max(trained) + 1
    if logits > max(_MOST_LOGITS, 10 * len(trained)):
        return [
            f"labels up to {logits - 1} make {logits} logits, and only {len(trained)} classes occur; number "
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
