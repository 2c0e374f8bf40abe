"""Silos from raw tables: one table with a column of silos, or one file per silo."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from numpy.typing import NDArray

from fedilc.data.checks.federation import Report
from fedilc.data.checks.notes import Note, grouped
from fedilc.data.silo import Federation, Silo, split_silo
from fedilc.data.tables.column_values import column_values, names_of, value_notes
from fedilc.data.tables.file_reader import file_kind, read_frame, read_npz
from fedilc.data.tables.label_rule import LabelRule, folded_label
from fedilc.data.tables.patients import Patients, patients_at_several
from fedilc.data.tables.preprocessing import Preprocessing, fit_preprocessing
from fedilc.data.tables.silo_summary import SiloSummary, label_levels, summarise
from fedilc.data.tables.site_notes import copied_silos, folded, shared_patients
from fedilc.data.tables.table_notes import leaking_columns, single_columns, table_notes
from fedilc.data.tables.table_settings import LabelledRows, Scaling, TableSettings
from fedilc.errors import DataError, nearest
from fedilc.progress import counted

T = TypeVar("T")


@dataclass(frozen=True)
class SiloTable:
    """One silo's rows: its features without preprocessing, and its labels as numbers.

    `unused` has the columns that may not be inputs, of the same rows; they may name subgroups.
    """

    name: str
    frame: pl.DataFrame
    y: NDArray[Any]
    labels: pl.Series = field(repr=False)
    unlabelled: int = 0
    unused: pl.DataFrame = field(default_factory=pl.DataFrame, repr=False)
    patients: Patients | None = field(default=None, repr=False)

    def silo(self, preprocessing: Preprocessing, validation: float, seed: int) -> Silo:
        """Return a silo of inputs and labels, some held out for validation, each class in proportion."""
        x = preprocessing.transform(self.frame)
        loss = preprocessing.label.loss
        return split_silo(self.name, x, self.y, validation, seed, loss, self.patients)


@dataclass(frozen=True)
class SiloTables:
    """Tables of several silos, and the preprocessing that makes inputs of them.

    Attributes:
        silos: by name.
        settings: with which they were read.
        label: the rule of the label.
        reading: sentences on what was noticed while reading.
        left_out: why rows are in no silo, and how many; None if their file was not read.
    """

    silos: dict[str, SiloTable]
    settings: TableSettings
    label: LabelRule
    reading: tuple[str, ...] = ()
    left_out: Mapping[str, int | None] = field(default_factory=dict)

    @cached_property
    def summaries(self) -> dict[str, SiloSummary]:
        """Return the summary of each silo's table."""
        return {
            name: summarise(name, table.frame, table.labels, self.settings, table.unlabelled)
            for name, table in counted("tables read", list(self.silos.items()))
        }

    @cached_property
    def leaks(self) -> tuple[str, ...]:
        """Return the columns that are used although they alone predict the label almost perfectly."""
        found = leaking_columns(list(self.summaries.values()), self.label)
        used = {feature.name for feature in self.fit(list(self.silos)).features}
        return tuple(name for name in found if name in used)

    @property
    def strongest(self) -> tuple[tuple[str, float], ...]:
        """Return the columns in use by their mean AUROC alone over silos, the highest first."""
        found = single_columns(list(self.summaries.values()), self.label)
        used = {feature.name for feature in self.fit(list(self.silos)).features}
        ranked = sorted(found, key=lambda name: (-found[name].mean, name))
        return tuple((name, found[name].mean) for name in ranked if name in used)

    @cached_property
    def findings(self) -> list[Note]:
        """Return notes on what was recognised or left out, and on probable mistakes."""
        made, frames = self.fit(list(self.silos)), {name: table.frame for name, table in self.silos.items()}
        copies = {note.proposal[1] for note in self.copies if note.proposal}
        return [
            *(Note(sentence) for sentence in self.reading),
            *value_notes(frames, self.settings),
            *table_notes(list(self.summaries.values()), made),
            *shared_patients({name: frame for name, frame in frames.items() if name not in copies}, made),
        ]

    @property
    def notes(self) -> list[str]:
        """Return one sentence per kind of finding, with the settings that it proposes."""
        return grouped(self.findings)

    @property
    def copies(self) -> list[Note]:
        """Return notes on silos that are copies of others."""
        return copied_silos(list(self.summaries.values()))

    def with_settings(self, exclude: Sequence[str] = (), **changed: Any) -> SiloTables:
        """Return the same tables, read with further settings; lists are added to the existing ones."""
        old = self.settings.model_dump(exclude_defaults=True)
        merged = {
            key: [*old.get(key, ()), *value] if isinstance(value, list) else value
            for key, value in changed.items()
        }
        column = self.label.column
        kept = without_sites(self.silos, exclude)
        frames = {
            name: pl.concat([table.frame, table.unused], how="horizontal").with_columns(
                table.labels.alias(column)
            )
            for name, table in kept.items()
        }
        _check_names(frames, settings := TableSettings(**{**old, **merged}), None)
        made = tables_of(frames, settings, self.reading)
        silos = {name: replace(table, unlabelled=kept[name].unlabelled) for name, table in made.silos.items()}
        out = {name: len(self.silos[name].y) + self.silos[name].unlabelled for name in exclude}
        return replace(made, silos=silos, left_out={**self.left_out, **_excluded(out)})

    def fit(self, silos: Sequence[str], scaling: Scaling | None = None) -> Preprocessing:
        """Return the preprocessing that fits these silos only; without a scaling, by that of the settings."""
        summaries = [self.summaries[name] for name in silos]
        changed = {} if scaling is None else {"scaling": scaling}
        return fit_preprocessing(summaries, self.label, self.settings.model_copy(update=changed))

    def federation(self, name: str, *, test: str | None, seed: int, validation: float) -> Federation:
        """Return a federation of all silos; the `test` silo is held out, and the preprocessing ignores it."""
        if test is not None and test not in self.silos:
            raise DataError(f"there is no silo {test!r}{nearest(test, self.silos)}")
        trained = [silo for silo in self.silos if silo != test]
        held_out = None if test is None else self.silos[test]
        if not trained:
            raise DataError(
                f"only the test set {test!r} is there, and no silo to train on; give another silo"
            )
        made = self.fit(trained)
        return Federation(
            name,
            [self.silos[silo].silo(made, validation, seed) for silo in trained],
            None if held_out is None else made.transform(held_out.frame),
            None if held_out is None else held_out.y,
            self.label.loss,
            made.columns,
            self.label.text,
            made,
            None if held_out is None else held_out.patients,
        )


def read_tables(
    paths: Sequence[Path],
    settings: TableSettings,
    silo_column: str | None = None,
    exclude: Sequence[str] = (),
) -> SiloTables:
    """Read the tables of all silos but some; without a column of silos each file is a silo."""
    notes: list[str] = []
    left_out: dict[str, int | None] = {}
    names = stems(paths) if silo_column is None else [str(path) for path in paths]
    parts = read_parts(dict(zip(names, paths, strict=True)), settings, silo_column, exclude, notes, left_out)
    return replace(tables_of(parts, settings, notes), left_out=left_out)


def read_parts(
    files: Mapping[str, Path],
    settings: TableSettings,
    silo_column: str | None,
    exclude: Sequence[str],
    notes: list[str],
    left_out: dict[str, int | None] | None = None,
) -> dict[str, pl.DataFrame]:
    """Return the rows of all silos but some; files are keyed by silo, unless a column names silos.

    `notes` and `left_out` are filled: with what was noticed, and with why rows are in no silo.
    """
    counted = {} if left_out is None else left_out
    if silo_column is None:
        files = without_sites(files, exclude)
        counted.update(_excluded(dict.fromkeys(exclude)))
    frames = {name: _frame(path, settings, notes) for name, path in files.items()}
    _check_names(frames, settings, silo_column)
    if silo_column is None:
        return frames
    silos = _by_silo(frames, silo_column, notes)
    if nameless := sum(map(len, frames.values())) - sum(map(len, silos.values())):
        counted["no site is named"] = nameless
    kept = without_sites(silos, exclude)
    counted.update(_excluded({name: len(silos[name]) for name in exclude}))
    by = settings.patient_column
    if by is not None and (found := patients_at_several(kept, by)) is not None:
        raise DataError(
            f"{found}, so that their rows would be in training and in held-out data; keep all rows of a "
            "patient at one silo, or name patients differently if they are not the same"
        )
    return kept


def _excluded(rows: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return why the rows of excluded silos are left out, and how many they are."""
    return {f"the site {name!r} is excluded": count for name, count in rows.items()}


def without_sites(silos: Mapping[str, T], exclude: Sequence[str]) -> dict[str, T]:
    """Return all silos but some; raise if one of these is unknown, or if none is left."""
    for name in exclude:
        if name not in silos:
            raise DataError(f"`exclude_sites` names {name!r}, which is not a silo{nearest(name, silos)}")
    kept = {name: part for name, part in silos.items() if name not in exclude}
    if not kept:
        raise DataError("no silo is left; exclude fewer with `exclude_sites`")
    return kept


def tables_of(
    frames: Mapping[str, pl.DataFrame], settings: TableSettings, notes: Sequence[str] = ()
) -> SiloTables:
    """Return the tables of silos by name; the label is one of their columns."""
    split = {name: settings.split_label(name, frame) for name, frame in frames.items()}
    rule = _label_rule([rows.label for rows in split.values()], settings)
    silos = {
        name: _silo_table(name, rows, rule, _unused(frames[name], rule, settings))
        for name, rows in split.items()
    }
    by = settings.patient_column
    shared = patients_at_several(frames, by) if by is not None else None
    own = [] if shared is None else [f"{shared}; they are taken as different patients"]
    return SiloTables(silos, settings, rule, (*notes, *own))


def _silo_table(name: str, rows: LabelledRows, rule: LabelRule, unused: pl.DataFrame) -> SiloTable:
    y = rule.encode(rows.label)
    return SiloTable(name, rows.features, y, rows.label, rows.unlabelled, unused, rows.patients)


def _unused(frame: pl.DataFrame, rule: LabelRule, settings: TableSettings) -> pl.DataFrame:
    """Return the columns that may not be inputs, of the rows that have a label."""
    names = [name for name in frame.columns if name != rule.column and not settings.uses(name)]
    if not names:
        return pl.DataFrame()
    return LabelRule.labelled_rows(frame, rule.column, settings.missing)[0].select(names)


def _label_rule(labels: Sequence[pl.Series], settings: TableSettings) -> LabelRule:
    """Return the label's rule; values that are rare at every silo count too, because nothing is sent."""
    parsed = LabelRule.parse(settings.label)
    every = [parsed.levels(label) for label in labels]
    named = [label_levels(parsed, label, settings.for_local(len(label)))[0] for label in labels]
    known = {folded_label(name) for levels in named for name in levels}
    is_complete = {folded_label(name) for levels in every for name in levels} <= known
    found = [own for own, all_own in zip(named, every, strict=True) if own or not all_own]
    return settings.rule(found if is_complete else every)


def read_features(path: Path, settings: TableSettings, silo: str) -> LabelledRows:
    """Return features, labels and patients of one silo's file, and how many rows have no label."""
    return _read_rows(path, settings, silo)[0]


def read_silo_table(path: Path, settings: TableSettings, rule: LabelRule, silo: str) -> SiloTable:
    """Return the table in one silo's file, whose label follows a rule that is known."""
    rows, frame = _read_rows(path, settings, silo)
    return _silo_table(silo, rows, rule, _unused(frame, rule, settings))


def _read_rows(path: Path, settings: TableSettings, silo: str) -> tuple[LabelledRows, pl.DataFrame]:
    notes: list[str] = []
    frame = _frame(path, settings, notes)
    found = settings.split_label(silo, frame)
    own = grouped(value_notes({silo: found[0]}, settings))
    Report(notes=[*notes, *own]).warn()
    return found, frame


def _frame(path: Path, settings: TableSettings, notes: list[str]) -> pl.DataFrame:
    column = LabelRule.parse(settings.label).column
    if file_kind(path) == ".npz":
        table = read_npz(path, column)
        if table.x.ndim != 2:
            raise DataError(f"{path} holds inputs of shape {table.x.shape[1:]}, which are not a table")
        return pl.DataFrame({f"x{i}": table.x[:, i] for i in range(table.x.shape[1])} | {column: table.y})
    frame, _, _, reading = read_frame(path, column)
    notes += reading
    return frame


def _check_names(
    frames: Mapping[str, pl.DataFrame], settings: TableSettings, silo_column: str | None
) -> None:
    """Raise if a column that is named in the settings is in no file."""
    check_columns(list(dict.fromkeys(name for frame in frames.values() for name in frame.columns)), settings)
    if silo_column is not None and silo_column == LabelRule.parse(settings.label).column:
        raise DataError(
            f"the column {silo_column!r} is given both as the label and as the column that names silos; "
            "name another column for one of them"
        )
    for place, frame in frames.items():
        if silo_column is not None and silo_column not in frame.columns:
            hint = nearest(silo_column, frame.columns)
            raise DataError(f"{place} has no column {silo_column!r} that names silos{hint}")


def check_columns(known: Sequence[str], settings: TableSettings) -> None:
    """Raise if a column that is named in the settings is not known."""
    named = {"categorical": settings.categorical, "drop": settings.drop, "keep": settings.keep}
    named |= {"categories": tuple(settings.categories), "columns": settings.columns}
    named["patient_column"] = () if settings.patient_column is None else (settings.patient_column,)
    named["missing"] = tuple(mark.rpartition("=")[0] for mark in settings.missing if "=" in mark)
    for option, columns in named.items():
        for column in columns:
            if column not in known:
                raise DataError(
                    f"`{option}` names the column {column!r}, which no file has{nearest(column, known)}"
                )


def stems(paths: Sequence[Path]) -> list[str]:
    """Return the name of each file's silo."""
    names = [path.name.removesuffix(".gz").rpartition(".")[0] for path in paths]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"two files are called {twice[0]!r}, and each names a silo; rename one")
    return names


def _by_silo(
    frames: Mapping[str, pl.DataFrame], silo_column: str, notes: list[str]
) -> dict[str, pl.DataFrame]:
    """Return the rows of each silo, silos by name; names that differ only in case or spaces are one silo."""
    found: dict[str, list[pl.DataFrame]] = {}
    for place, frame in frames.items():
        _, values = column_values(frame[silo_column])
        names = names_of(values)
        if names.null_count():
            notes.append(f"{place} has {names.null_count()} rows without a silo, which are left out")
        rows = frame.drop(silo_column)
        for name in names.drop_nulls().unique(maintain_order=True):
            found.setdefault(name, []).append(rows.filter(names == name))
    spelled: dict[str, list[str]] = {}
    for name in sorted(found, key=lambda name: (-sum(map(len, found[name])), name)):
        spelled.setdefault(folded(name), []).append(name)
    for first, *others in spelled.values():
        if others:
            found[first] += [part for other in others for part in found.pop(other)]
            both = " and ".join(map(repr, [first, *others]))
            notes.append(f"{both} differ only in case or spaces, and are taken as one silo, {first!r}")
    ordered = sorted(found, key=_natural)
    return {name: pl.concat(found[name], how="diagonal_relaxed") for name in ordered}


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that puts "site 10" after "site 9"."""
    return [(int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]
