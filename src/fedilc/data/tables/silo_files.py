"""Silos from files, for the sources "tables" and "files": examined first, then in memory or streamed.

With `scale` a preprocessing makes inputs of the tables (`silo_tables.py`); without it their numbers are the
inputs (`file_reader.py`). Both kinds of inputs are then compared by the same checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from glob import glob
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from fedilc.algorithms.loss_registry import LossName, task_of
from fedilc.data.checks.federation import Report, class_problems, compare, numbered_from_one, trained_labels
from fedilc.data.checks.notes import details, grouped
from fedilc.data.checks.profile import TEST, Profile, profile_of
from fedilc.data.digests import silo_digest
from fedilc.data.inputs import Inputs
from fedilc.data.silo import (
    Federation,
    Silo,
    label_problem,
    note_numbered_from_one,
    numbered_from_zero,
    split_silo,
)
from fedilc.data.silo_store import SiloStore
from fedilc.data.tables.file_reader import (
    Examples,
    check_header,
    examples_of,
    file_kind,
    is_table_name,
    read_frame,
    read_npz,
    same_columns,
)
from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.preprocessing import Preprocessing
from fedilc.data.tables.silo_tables import (
    SiloTables,
    check_columns,
    read_parts,
    stems,
    tables_of,
    without_sites,
)
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import DataError, DataProblemsError, listed, nearest


@dataclass
class Examined:
    """What was found in silos: a profile of each that could be read, and problems and notes.

    `make` gives the silos that stay in memory, and `streamed` those that do not, if there is no problem.
    """

    report: Report = field(default_factory=Report)
    profiles: dict[str, Profile] = field(default_factory=dict)
    test: Profile | None = None
    loss: LossName = "binary"
    make: Callable[[], Federation] = lambda: Federation("", ())
    streamed: Callable[[], SiloStore] | None = None

    def federation(self) -> Federation:
        """Return the silos in memory; raise all problems, or else warn of each note."""
        self.report.require()
        self.report.warn()
        return self.make()

    def store(self) -> SiloStore:
        """Return the same silos; those that were not kept are read again when opened."""
        if self.streamed is None:
            return SiloStore.of(self.federation())
        self.report.require()
        self.report.warn()
        return self.streamed()


@dataclass(frozen=True)
class SiloFiles:
    """The files of silos, and how they are read; paths and patterns are relative to `folder`.

    Args:
        folder: the experiment's folder.
        name: the federation's name.
        silos: a pattern, or files by silo, or a list of files and patterns whose names are those of silos.
        settings: how tables are read.
        test: the silo that is held out as the test set, or a file.
        validation_share: the share of each silo's examples that is held out.
        scale: whether tables are preprocessed; otherwise all cells are numbers.
        silo_column: the column that names silos; without it each file is a silo.
        exclude: the silos to leave out.
    """

    folder: Path
    name: str
    silos: str | Sequence[str] | Mapping[str, str]
    settings: TableSettings
    test: str | None = None
    validation_share: float = 0.3
    scale: bool = True
    silo_column: str | None = None
    exclude: Sequence[str] = ()

    @cached_property
    def files(self) -> dict[str, Path]:
        """Return the files by silo; with a column of silos, by their own names."""
        if isinstance(self.silos, Mapping):
            return {name: self.folder / path for name, path in self.silos.items()}
        if isinstance(self.silos, str):
            return {name: self.folder / path for name, path in matching(self.silos, self.folder).items()}
        several = [matching(pattern, self.folder, "files").values() for pattern in self.silos]
        paths = [self.folder / path for matches in several for path in matches]
        return dict(zip(stems(paths) if self.silo_column is None else map(str, paths), paths, strict=True))

    @property
    def loss(self) -> LossName:
        """Return the loss for labels that are used as they are."""
        return self.settings.loss or "binary"

    def tables(self) -> SiloTables:
        """Return the tables of all silos; a test set that is a file is one of them, called "the test set"."""
        notes: list[str] = []
        left_out: dict[str, int | None] = {}
        parts = read_parts(self.files, self.settings, self.silo_column, self.exclude, notes, left_out)
        if (path := self.test_file(parts)) is not None:
            Report(self.test_problems(path)).require()
            parts |= read_parts({TEST: path}, TableSettings(label=self.settings.label), None, (), notes)
        return replace(tables_of(parts, self.settings, notes), left_out=left_out)

    def examine(self, seed: int, keep: bool = True) -> Examined:
        """Read every file once and return all problems; without `keep`, examples do not stay in memory."""
        try:
            if self.scale:
                tables = self.tables()
                test = self.test if self.test is None or self.test in tables.silos else TEST
                files = {} if self.silo_column is not None else self.files
                files = files | ({TEST: files[test]} if test in files else {})
                return examine_tables(tables, self.name, test, seed, self.validation_share, files)
            return _Numbers(self, seed, keep).examine()
        except DataError as error:
            return Examined(Report(getattr(error, "problems", [str(error)])))

    def test_file(self, silos: Mapping[str, object]) -> Path | None:
        """Return the file of the test set; None if there is no test set, or if a silo is held out."""
        if self.test is None or self.test in silos:
            return None
        path = self.folder / self.test
        if not (path.exists() or is_table_name(path)):
            raise DataError(f"there is no silo {self.test!r}{nearest(self.test, silos)}")
        return path

    def test_problems(self, test: Path) -> list[str]:
        """Return a problem per silo whose file is also the file of the test set."""
        return [
            f"data.test {self.test!r} is also the file of silo {name!r}, so the model would be tested on "
            "its training data; leave that file out of the silos, or name another test file"
            for name, path in self.files.items()
            if self.silo_column is None and path.resolve() == test.resolve()
        ]


def examine_tables(
    tables: SiloTables,
    name: str,
    test: str | None,
    seed: int,
    validation_share: float,
    files: Mapping[str, Path] | None = None,
) -> Examined:
    """Examine tables and the inputs made from them; `test` names the silo that is held out, if any."""
    found = Examined(Report(details(tables.copies), grouped(tables.findings)))
    if found.report.problems:
        return found
    federation = tables.federation(name, test=test, seed=seed, validation=validation_share)
    made = cast("Preprocessing", federation.preprocessing)
    found.loss, found.make = federation.loss, lambda: federation
    held_out = [] if federation.x_test is None else [Silo(TEST, federation.x_test, federation.y_test)]
    for silo in (*federation.silos, *held_out):
        profile = profile_of(silo, federation.columns, (), str((files or {}).get(silo.name, "")))
        profile = replace(profile, sample=_input_per_feature(profile.sample, made))
        if silo.name == TEST:
            found.test = profile
        else:
            found.profiles[silo.name] = profile
    more = compare(list(found.profiles.values()), found.test, loss=federation.loss, prepared=True)
    found.report.problems += more.problems
    found.report.notes += more.notes
    return found


def _input_per_feature(rows: NDArray[np.float32], made: Preprocessing) -> NDArray[np.float32]:
    """Return rows with one number per column of the table, since inputs of one column are not independent."""
    ends = np.cumsum([len(feature.inputs) for feature in made.features])[:-1]
    parts = np.split(rows, ends, axis=1)
    return np.stack([part @ np.arange(1, part.shape[1] + 1, dtype=np.float32) for part in parts], axis=1)


@dataclass
class _Numbers:
    """The examination of tables whose numbers are used as they are."""

    source: SiloFiles
    seed: int
    keep: bool
    found: Examined = field(default_factory=Examined)
    seen: dict[str, None] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    silos: list[Silo] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    sample: Inputs = field(default_factory=lambda: torch.empty(0))
    test: Examples | None = None

    def examine(self) -> Examined:
        """Read every silo once, and return all problems."""
        source, found = self.source, self.found
        found.loss = source.loss
        problems: list[tuple[str, str]] = []
        notes: list[tuple[str, str]] = []
        first: str | None = None
        shape: tuple[int, ...] = ()
        for name, (place, read_it) in self._places(notes).items():
            try:
                read = read_it()
                if first is None:
                    first, self.columns, shape = name, read.columns, read.x.shape[1:]
                read = same_columns(name, read, first, self.columns)
                self._check(name, place, read, first, shape)
                share = 0.0 if name == TEST else source.validation_share
                silo = split_silo(name, read.x, read.y, share, self.seed, source.loss)
            except DataError as error:
                problems += [(place, text) for text in getattr(error, "problems", [str(error)])]
                labels = getattr(error, "labels", None)
                if labels is not None and (wrong := label_problem(labels, source.loss)) is not None:
                    problems.append((place, f"{place}: column {source.settings.label!r} {wrong[1]}"))
                continue
            notes += [(place, text) for text in read.notes]
            file = "" if source.silo_column is not None and name != TEST else place
            profile = profile_of(silo, self.columns, read.identifiers if read.columns else None, file)
            if name == TEST:
                found.test, self.test = profile, replace(read, numbers=None)
            else:
                self.sample = self.sample if found.profiles else silo.x[:2].clone()
                found.profiles[name] = profile
                if self.keep:
                    self.silos.append(silo)
                else:
                    self.digests[name] = silo_digest(silo)
        found.report.problems += _grouped(problems)
        found.report.notes += _grouped(notes)
        if not found.report.problems:
            check_columns(list(self.seen), source.settings)
        if found.profiles:
            self._compare()
        if self.keep:
            found.make = self._federation
        else:
            found.streamed = self._streamed
        return found

    def _places(self, notes: list[tuple[str, str]]) -> dict[str, tuple[str, Callable[[], Examples]]]:
        """Return, by silo, where its rows are and how they are read; the test set is the last."""
        source = self.source
        found: dict[str, tuple[str, Callable[[], Examples]]]
        if source.silo_column is None:
            files = without_sites(source.files, source.exclude)
            found = {name: (str(path), partial(self._read, path)) for name, path in files.items()}
        else:
            reading: list[str] = []
            parts = read_parts(source.files, source.settings, source.silo_column, source.exclude, reading)
            notes += [("", text) for text in reading]
            found = {
                name: (f"silo {name!r}", partial(self._examples, f"silo {name!r}", frame))
                for name, frame in parts.items()
            }
        if (path := source.test_file(found)) is None:
            return found if source.test is None else found | {TEST: found.pop(source.test)}
        wrong = source.test_problems(path)
        self.found.report.problems += wrong
        return found if wrong else found | {TEST: (str(path), partial(self._read, path))}

    def _read(self, path: Path) -> Examples:
        """Return the examples of a file; an NPZ file may have inputs of any shape."""
        label = self.source.settings.label
        rule = LabelRule.parse(label)
        if file_kind(path) == ".npz":
            read = read_npz(path, label if rule.comparison is None else rule.column)
            return read if rule.comparison is None else replace(read, y=rule.encode(pl.Series(read.y)))
        frame, numbers, unit, notes = read_frame(path, label if rule.comparison is None else None)
        check_header(path, frame, label if label in frame.columns else rule.column)
        return self._examples(str(path), frame, numbers, unit, notes)

    def _examples(
        self,
        place: str,
        frame: pl.DataFrame,
        numbers: NDArray[np.int64] | None = None,
        unit: str = "row",
        notes: Sequence[str] = (),
    ) -> Examples:
        """Return the numbers of the columns that are used, and the labels."""
        settings = self.source.settings
        rule, column = LabelRule.parse(settings.label), settings.label
        if column not in frame.columns:
            column = rule.column
            frame = frame.with_columns(pl.Series(column, rule.encode(frame[column])))
        self.seen |= dict.fromkeys(frame.columns)
        used = frame.select(name for name in frame.columns if name == column or settings.uses(name))
        if used.width < 2:
            raise DataError(f"{place} has no column left beside {column!r}; drop fewer columns")
        rows = np.arange(1, len(frame) + 1) if numbers is None else numbers
        return examples_of(place, column, used, rows, unit, notes)

    def _federation(self) -> Federation:
        test = self.test
        x_test, y_test = (test.x, test.y) if test is not None else (None, None)
        source = self.source
        names = self.columns, source.settings.label
        return Federation(source.name, self.silos, x_test, y_test, source.loss, *names)

    def _streamed(self) -> SiloStore:
        """Return silos of which at most one is in memory: each is read when it is opened."""
        source, found = self.source, self.found
        first = next(iter(found.profiles))
        profiles = list(found.profiles.values())
        from_one = task_of(source.loss) == "multiclass" and numbered_from_one(profiles, found.test)

        def open_(name: str) -> Silo:
            read = same_columns(name, self._read(source.files[name]), first, self.columns)
            silo = split_silo(name, read.x, read.y, source.validation_share, self.seed, source.loss)
            return numbered_from_zero(silo) if from_one else silo

        labels = max(trained_labels(profiles))
        if from_one:
            note_numbered_from_one(labels)
        x_test = y_test = None
        if (test := self.test) is not None:
            x_test, y_test = torch.from_numpy(test.x), torch.from_numpy(test.y) - int(from_one)
        return SiloStore(
            source.name,
            {name: {"examples": len(profile.trained)} for name, profile in found.profiles.items()},
            self.sample,
            source.loss,
            x_test,
            y_test,
            self.columns,
            source.settings.label,
            any(len(profile.held_out) for profile in profiles),
            first_label=int(from_one),
            make=open_,
            outputs=labels + 1 - int(from_one) if task_of(source.loss) == "multiclass" else 1,
            seen=self.digests,
        )

    def _check(self, name: str, place: str, read: Examples, first: str, shape: tuple[int, ...]) -> None:
        """Raise if a file's labels do not fit the loss, or its inputs have another shape."""
        problems = []
        wrong = label_problem(read.y, self.source.loss)
        if wrong is not None:
            example, sentence = wrong
            problems.append(
                f"{place}: column {self.source.settings.label!r} {sentence} (in {read.where(example)})"
            )
        if read.x.shape[1:] != shape:
            problems.append(
                f"{name if name == TEST else f'silo {name!r}'} has inputs of shape {read.x.shape[1:]} but "
                f"silo {first!r} has {shape}; all inputs must have one shape"
            )
        if problems:
            raise DataProblemsError(problems)

    def _compare(self) -> None:
        found = self.found
        silos = list(found.profiles.values())
        more = compare(silos, found.test, self.columns, self.source.loss)
        found.report.problems += more.problems
        found.report.notes += more.notes
        if task_of(self.source.loss) == "multiclass":
            found.report.problems += class_problems(silos, found.test)


def _grouped(sentences: Sequence[tuple[str, str]]) -> list[str]:
    """Return each sentence once, with the other files to which it applies."""
    files: dict[str, list[str]] = {}
    for place, sentence in sentences:
        files.setdefault(sentence.replace(place, "{}"), []).append(place)
    return [
        sentence.replace("{}", paths[0])
        + (f"; the same holds for {listed(paths[1:])}" if len(paths) > 1 else "")
        for sentence, paths in files.items()
    ]


def matching(pattern: str, folder: Path, key: str = "silos") -> dict[str, str]:
    """Return the files of a pattern by the shortest form of their names that is unique."""
    matches = glob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207 - Path.glob refuses absolute ones
    found = [Path(path) for path in sorted(matches)]
    found = [p for p in found if not (folder / p).is_dir() and not p.name.startswith("~$")]
    if not found:
        raise DataError(f"no file matches {pattern!r} in {folder}; correct data.{key}")
    for names in ([p.stem for p in found], [str(p.with_suffix("")) for p in found], [str(p) for p in found]):
        if len(set(names)) == len(names):
            break
    return dict(zip(names, map(str, found), strict=True))
