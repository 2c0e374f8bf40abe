"""Silos from files of numbers (CSV, Parquet or NPZ), one file per silo: the source "files"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path

import torch

from fedilc.algorithms.loss_name import LossName, task_of
from fedilc.data.checks.federation import Report, class_problems, compare, numbered_from_one, trained_labels
from fedilc.data.checks.profile import TEST, Profile, profile_of
from fedilc.data.digest import silo_digest
from fedilc.data.inputs import Inputs
from fedilc.data.labels import label_problem, note_numbered_from_one, numbered_from_zero
from fedilc.data.silo import Federation, Silo, split_silo
from fedilc.data.silo_store import SiloStore
from fedilc.data.tables.file_reader import Examples, read_examples, same_columns
from fedilc.errors import DataError, DataProblemsError, listed


@dataclass
class Examined:
    """The contents of the files: a profile of each that could be read, and problems and notes.

    `silos` has the silos themselves if they stay in memory, and `digests` their digests if not; `sample` has
    two inputs.
    """

    files: dict[str, Path]
    report: Report = field(default_factory=Report)
    profiles: dict[str, Profile] = field(default_factory=dict)
    test: Profile | None = None
    columns: tuple[str, ...] = ()
    silos: list[Silo] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    sample: Inputs = field(default_factory=lambda: torch.empty(0))
    test_examples: Examples | None = None


@dataclass(frozen=True)
class NumericFiles:
    """The files of silos, and how they are read; paths and patterns are relative to `folder`."""

    folder: Path
    silos: str | Mapping[str, str]
    label: str
    test: str | None
    loss: LossName
    validation_share: float

    def examine(self, seed: int, keep: bool = True) -> Examined:
        """Read every file once and return all problems; without `keep`, examples do not stay in memory."""
        try:
            named = matching(self.silos, self.folder) if isinstance(self.silos, str) else self.silos
        except DataError as error:
            return Examined({}, Report([str(error)]))
        found = Examined({name: self.folder / path for name, path in named.items()})
        apart = self._test_is_apart(found)
        problems: list[tuple[Path, str]] = []
        notes: list[tuple[Path, str]] = []
        first: str | None = None
        shape: tuple[int, ...] = ()
        test = {TEST: self.folder / self.test} if self.test and apart else {}
        for name, path in (found.files | test).items():
            try:
                read = read_examples(path, self.label)
                if first is None:
                    first, found.columns, shape = name, read.columns, read.x.shape[1:]
                read = same_columns(name, read, first, found.columns)
                self._check(name, path, read, first, shape)
                share = 0.0 if name == TEST else self.validation_share
                silo = split_silo(name, read.x, read.y, share, seed, self.loss)
            except DataError as error:
                problems += [(path, text) for text in getattr(error, "problems", [str(error)])]
                labels = getattr(error, "labels", None)
                if labels is not None and (wrong := label_problem(labels, self.loss)) is not None:
                    problems.append((path, f"{path}: column {self.label!r} {wrong[1]}"))
                continue
            notes += [(path, text) for text in read.notes]
            profile = profile_of(silo, found.columns, read.identifiers if read.columns else None, str(path))
            if name == TEST:
                found.test, found.test_examples = profile, replace(read, numbers=None)
            else:
                found.sample = found.sample if found.profiles else silo.x[:2].clone()
                found.profiles[name] = profile
                if keep:
                    found.silos.append(silo)
                else:
                    found.digests[name] = silo_digest(silo)
        found.report.problems += _grouped(problems)
        found.report.notes += _grouped(notes)
        if found.profiles:
            self._compare(found)
        return found

    def federation(self, seed: int) -> Federation:
        """Return all silos, in memory; raise all problems of their files."""
        found = self.examine(seed)
        found.report.require()
        return self._federation(found)

    def store(self, found: Examined, seed: int) -> SiloStore:
        """Return the silos that were examined; those that were not kept are read again when opened."""
        return SiloStore.of(self._federation(found)) if found.silos else self._streamed(found, seed)

    def _federation(self, found: Examined) -> Federation:
        test = found.test_examples
        x_test, y_test = (test.x, test.y) if test is not None else (None, None)
        name = self.folder.name or "files"
        return Federation(name, found.silos, x_test, y_test, self.loss, found.columns, self.label)

    def _streamed(self, found: Examined, seed: int) -> SiloStore:
        """Return silos of which at most one is in memory: each is read when it is opened."""
        first = next(iter(found.files))
        profiles = list(found.profiles.values())
        from_one = task_of(self.loss) == "multiclass" and numbered_from_one(profiles, found.test)

        def open_(name: str) -> Silo:
            read = same_columns(name, read_examples(found.files[name], self.label), first, found.columns)
            silo = split_silo(name, read.x, read.y, self.validation_share, seed, self.loss)
            return numbered_from_zero(silo) if from_one else silo

        labels = max(trained_labels(profiles))
        if from_one:
            note_numbered_from_one(labels)
        x_test = y_test = None
        if (test := found.test_examples) is not None:
            x_test, y_test = torch.from_numpy(test.x), torch.from_numpy(test.y) - int(from_one)
        return SiloStore(
            self.folder.name or "files",
            {name: {"examples": len(profile.trained)} for name, profile in found.profiles.items()},
            found.sample,
            self.loss,
            x_test,
            y_test,
            found.columns,
            self.label,
            any(len(profile.held_out) for profile in profiles),
            first_label=int(from_one),
            make=open_,
            outputs=labels + 1 - int(from_one) if task_of(self.loss) == "multiclass" else 1,
            seen=found.digests,
        )

    def _test_is_apart(self, found: Examined) -> bool:
        """Return whether the test file is none of the silos' files; otherwise report a problem."""
        test = (self.folder / self.test).resolve() if self.test else None
        same = [name for name, path in found.files.items() if path.resolve() == test]
        found.report.problems += [
            f"data.test {self.test!r} is also the file of silo {name!r}, so the model would be tested on "
            "its training data; leave that file out of data.silos, or name another test file"
            for name in same
        ]
        return not same

    def _check(self, name: str, path: Path, read: Examples, first: str, shape: tuple[int, ...]) -> None:
        """Raise if a file's labels do not fit the loss, or its inputs have another shape."""
        problems = []
        wrong = label_problem(read.y, self.loss)
        if wrong is not None:
            example, sentence = wrong
            problems.append(f"{path}: column {self.label!r} {sentence} (in {read.where(example)})")
        if read.x.shape[1:] != shape:
            problems.append(
                f"{name if name == TEST else f'silo {name!r}'} has inputs of shape {read.x.shape[1:]} but "
                f"silo {first!r} has {shape}; all inputs must have one shape"
            )
        if problems:
            raise DataProblemsError(problems)

    def _compare(self, found: Examined) -> None:
        silos = list(found.profiles.values())
        more = compare(silos, found.test, found.columns, self.loss)
        found.report.problems += more.problems
        found.report.notes += more.notes
        if task_of(self.loss) == "multiclass":
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
