"""Silos from the user's own files: CSV, Parquet or NPZ, one file per silo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path

import numpy as np
import torch

from fedilc.algorithms.loss_name import LossName, has_classes
from fedilc.data.checks.federation import Report, class_problems, compare, numbered_from_one, trained_labels
from fedilc.data.checks.profile import TEST, Profile, profile_of
from fedilc.data.digest import silo_digest
from fedilc.data.labels import label_problem, note_numbered_from_one, numbered_from_zero
from fedilc.data.silo import Federation, Silo
from fedilc.data.silo_store import SiloStore
from fedilc.data.tables.reader import Table, read_table, same_columns
from fedilc.errors import DataError, DataProblemsError, listed
from fedilc.seeds import numpy_generator


def split(
    table: Table, share: float, random: np.random.Generator, by_class: bool = True
) -> tuple[Table, Table]:
    """Return training and validation parts, each class in the same proportion if there are classes."""
    held_out = np.zeros(len(table.y), dtype=bool)
    classes = table.y if by_class else np.zeros(len(table.y))
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        held_out[random.permutation(members)[: round(share * len(members))]] = True
    train = Table(table.x[~held_out], table.y[~held_out], table.columns)
    return train, Table(table.x[held_out], table.y[held_out], table.columns)


def silo_of(name: str, table: Table, validation_share: float, seed: int, loss: LossName = "binary") -> Silo:
    """Return a silo of a table's examples, some of them held out for validation.

    The choice depends on the labels and the seed, not on the silo's name or position.
    """
    random = numpy_generator(seed, "files", "validation")
    train, held_out = split(table, validation_share, random, has_classes(loss))
    if not len(train.y):
        raise DataError(
            f"validation_share={validation_share:g} leaves silo {name!r}, which has {len(table.y)} examples, "
            "none to train on; lower it"
        )
    return Silo(name, train.x, train.y, held_out.x, held_out.y)


@dataclass
class Examined:
    """The contents of the files: a profile of each that could be read, and problems and notes.

    `silos` has the silos themselves if they stay in memory, and `digests` their digests if not.
    """

    files: dict[str, Path]
    report: Report = field(default_factory=Report)
    profiles: dict[str, Profile] = field(default_factory=dict)
    test: Profile | None = None
    columns: tuple[str, ...] = ()
    silos: list[Silo] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    sample: Silo | None = None
    test_table: Table | None = None


@dataclass(frozen=True)
class SiloFiles:
    """The files of silos, and how they are read; paths and patterns are relative to a folder."""

    silos: str | Mapping[str, str]
    label: str
    test: str | None
    loss: LossName
    validation_share: float

    def paths(self, folder: Path) -> dict[str, Path]:
        """Return the file of each silo."""
        named = matching(self.silos, folder) if isinstance(self.silos, str) else self.silos
        return {name: folder / path for name, path in named.items()}

    def examine(self, seed: int, folder: Path, keep: bool = True) -> Examined:
        """Read every file once and return all problems; without `keep`, examples do not stay in memory."""
        try:
            found = Examined(self.paths(folder))
        except DataError as error:
            return Examined({}, Report([str(error)]))
        apart = self._test_is_apart(found, folder)
        problems: list[tuple[Path, str]] = []
        notes: list[tuple[Path, str]] = []
        first: str | None = None
        shape: tuple[int, ...] = ()
        test = {TEST: folder / self.test} if self.test and apart else {}
        for name, path in (found.files | test).items():
            try:
                table = read_table(path, self.label)
                if first is None:
                    first, found.columns, shape = name, table.columns, table.x.shape[1:]
                table = same_columns(name, table, first, found.columns)
                self._check(name, path, table, first, shape)
                share = 0.0 if name == TEST else self.validation_share
                silo = silo_of(name, table, share, seed, self.loss)
            except DataError as error:
                problems += [(path, text) for text in getattr(error, "problems", [str(error)])]
                labels = getattr(error, "labels", None)
                if labels is not None and (wrong := label_problem(labels, self.loss)) is not None:
                    problems.append((path, f"{path}: column {self.label!r} {wrong[1]}"))
                continue
            notes += [(path, text) for text in table.notes]
            profile = profile_of(silo, found.columns, table.identifiers if table.columns else None, str(path))
            if name == TEST:
                found.test, found.test_table = profile, replace(table, numbers=None)
            else:
                found.profiles[name] = profile
                found.sample = found.sample or Silo(name, silo.x[:2].clone(), silo.y[:2].clone())
                if keep:
                    found.silos.append(silo)
                else:
                    found.digests[name] = silo_digest(silo)
        found.report.problems += _grouped(problems)
        found.report.notes += _grouped(notes)
        if found.profiles:
            self._compare(found)
        return found

    def federation(self, seed: int, folder: Path) -> Federation:
        """Return all silos, in memory; raise all problems of their files."""
        found = self.examine(seed, folder)
        found.report.require()
        return self._federation(found, folder)

    def store(self, found: Examined, seed: int, folder: Path) -> SiloStore:
        """Return the silos that were examined; those that were not kept are read again when opened."""
        return (
            SiloStore.of(self._federation(found, folder))
            if found.silos
            else self._streamed(found, seed, folder)
        )

    def _federation(self, found: Examined, folder: Path) -> Federation:
        test = found.test_table
        x_test, y_test = (test.x, test.y) if test is not None else (None, None)
        name = folder.name or "files"
        return Federation(name, found.silos, x_test, y_test, self.loss, found.columns, self.label)

    def _streamed(self, found: Examined, seed: int, folder: Path) -> SiloStore:
        """Return silos of which at most one is in memory: each is read when it is opened."""
        first = next(iter(found.files))
        profiles = list(found.profiles.values())
        from_one = self.loss == "multiclass" and numbered_from_one(profiles, found.test)

        def open_(name: str) -> Silo:
            table = same_columns(name, read_table(found.files[name], self.label), first, found.columns)
            silo = silo_of(name, table, self.validation_share, seed, self.loss)
            return numbered_from_zero(silo) if from_one else silo

        labels = max(trained_labels(profiles))
        if from_one:
            note_numbered_from_one(labels)
        x_test = y_test = None
        if (test := found.test_table) is not None:
            x_test, y_test = torch.from_numpy(test.x), torch.from_numpy(test.y) - int(from_one)
        assert found.sample is not None
        return SiloStore(
            folder.name or "files",
            {name: len(profile.trained) for name, profile in found.profiles.items()},
            open_,
            found.sample.x,
            labels + 1 - int(from_one) if self.loss == "multiclass" else 1,
            self.loss,
            x_test,
            y_test,
            seen=found.digests,
            columns=found.columns,
            label=self.label,
            validates=any(len(profile.held_out) for profile in profiles),
            first_label=int(from_one),
        )

    def _test_is_apart(self, found: Examined, folder: Path) -> bool:
        """Return whether the test file is none of the silos' files; otherwise report a problem."""
        test = (folder / self.test).resolve() if self.test else None
        same = [name for name, path in found.files.items() if path.resolve() == test]
        found.report.problems += [
            f"data.test {self.test!r} is also the file of silo {name!r}, so the model would be tested on "
            "its training data; leave that file out of data.silos, or name another test file"
            for name in same
        ]
        return not same

    def _check(self, name: str, path: Path, table: Table, first: str, shape: tuple[int, ...]) -> None:
        """Raise if a table's labels do not fit the loss, or its inputs have another shape."""
        problems = []
        wrong = label_problem(table.y, self.loss)
        if wrong is not None:
            example, sentence = wrong
            problems.append(f"{path}: column {self.label!r} {sentence} (in {table.where(example)})")
        if table.x.shape[1:] != shape:
            problems.append(
                f"{name if name == TEST else f'silo {name!r}'} has inputs of shape {table.x.shape[1:]} but "
                f"silo {first!r} has {shape}; all inputs must have one shape"
            )
        if problems:
            raise DataProblemsError(problems)

    def _compare(self, found: Examined) -> None:
        silos = list(found.profiles.values())
        more = compare(silos, found.test, found.columns, self.loss)
        found.report.problems += more.problems
        found.report.notes += more.notes
        if self.loss == "multiclass":
            found.report.problems += class_problems(silos, found.test)


def _grouped(sentences: Sequence[tuple[Path, str]]) -> list[str]:
    """Return each sentence once, with the other files that it is true of."""
    files: dict[str, list[str]] = {}
    for path, sentence in sentences:
        files.setdefault(sentence.replace(str(path), "{}"), []).append(str(path))
    return [
        sentence.replace("{}", paths[0])
        + (f"; the same holds for {listed(paths[1:])}" if len(paths) > 1 else "")
        for sentence, paths in files.items()
    ]


def matching(pattern: str, folder: Path) -> dict[str, str]:
    """Return the files of a pattern by the shortest form of their names that differs for all."""
    matches = glob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207 - Path.glob refuses absolute ones
    found = [Path(path) for path in sorted(matches)]
    found = [p for p in found if not (folder / p).is_dir() and not p.name.startswith("~$")]
    if not found:
        raise DataError(f"no file matches {pattern!r} in {folder}; correct data.silos")
    for names in ([p.stem for p in found], [str(p.with_suffix("")) for p in found], [str(p) for p in found]):
        if len(set(names)) == len(names):
            break
    return dict(zip(names, map(str, found), strict=True))
