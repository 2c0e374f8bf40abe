"""Silos from tables without preparation: one table with a column of silos, or one file per silo."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedilc.algorithms.loss_name import LossName
from fedilc.data.checks.federation import Report
from fedilc.data.silo import Federation, Silo, split_silo
from fedilc.data.tables.column_values import column_values, names_of
from fedilc.data.tables.file_reader import file_kind, read_frame, read_npz
from fedilc.data.tables.label_rule import LabelRule, merged_levels
from fedilc.data.tables.preprocessing import Preprocessing, fit_preprocessing
from fedilc.data.tables.silo_summary import SiloSummary, summarise
from fedilc.data.tables.table_notes import leaking_columns, table_notes
from fedilc.data.tables.value_notes import value_notes
from fedilc.errors import DataError, nearest


@dataclass(frozen=True)
class SiloTable:
    """One silo's rows: its features without preprocessing, and its labels as numbers."""

    name: str
    frame: pl.DataFrame
    y: NDArray[Any]
    labels: pl.Series = field(repr=False)
    unlabelled: int = 0

    def silo(self, preprocessing: Preprocessing, validation: float, seed: int) -> Silo:
        """Return a silo of inputs and labels, some held out for validation, each class in proportion."""
        x = preprocessing.transform(self.frame)
        return split_silo(self.name, x, self.y, validation, seed, preprocessing.label.loss)


class TableSettings(BaseModel):
    """The settings that tables are read with, which are the same for every silo of a run.

    They are those of `fedilc.config.user_sources.ColumnSettings`, which explains each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    positive: str | None = None
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    categories: dict[str, list[str]] = Field(default_factory=dict)
    missing: tuple[str, ...] = ()
    loss: LossName | None = None

    def rule(self, levels: Sequence[Mapping[str, int]]) -> LabelRule:
        """Return the label's rule for the values that occur in each silo."""
        rule = LabelRule.parse(self.label)
        rows = merged_levels(levels) if all(levels) else {}
        return rule.with_classes(rows, self.positive, self.loss, self.categories.get(rule.column, ()))

    def split_label(self, name: str, frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series, int]:
        """Return features and label of the rows that have a label, and how many do not."""
        column = LabelRule.parse(self.label).column
        if column not in frame.columns:
            raise DataError(f"silo {name!r} has no label column {column!r}{nearest(column, frame.columns)}")
        rows, label = LabelRule.labelled_rows(frame, column, self.missing)
        if not len(label):
            raise DataError(f"silo {name!r} has no row with a label; remove its rows, or fill in the label")
        features = rows.drop(*(drop for drop in self.drop if drop in rows.columns))
        return features, label, len(frame) - len(label)


@dataclass(frozen=True)
class SiloTables:
    """Tables of several silos, and the preprocessing that makes inputs of them."""

    silos: dict[str, SiloTable]
    settings: TableSettings
    label: LabelRule
    reading: tuple[str, ...] = ()

    @cached_property
    def summaries(self) -> dict[str, SiloSummary]:
        """Return the summary of each silo's table."""
        return {
            name: summarise(name, table.frame, table.labels, self.settings, table.unlabelled)
            for name, table in self.silos.items()
        }

    @cached_property
    def leaks(self) -> tuple[str, ...]:
        """Return the columns that are used although they alone predict the label almost perfectly."""
        found = leaking_columns(list(self.summaries.values()), self.label)
        used = {feature.name for feature in self.fit(list(self.silos)).features}
        return tuple(name for name in found if name in used)

    @cached_property
    def notes(self) -> list[str]:
        """Return sentences on what was recognised or left out, and on probable mistakes."""
        everything = self.fit(list(self.silos))
        return [
            *self.reading,
            *value_notes({name: table.frame for name, table in self.silos.items()}, self.settings),
            *table_notes(list(self.summaries.values()), everything),
        ]

    def fit(self, silos: Sequence[str]) -> Preprocessing:
        """Return the preprocessing that fits these silos only."""
        summaries = [self.summaries[name] for name in silos]
        return fit_preprocessing(summaries, self.label, self.settings)

    def federation(self, name: str, *, test: str | None, seed: int, validation: float) -> Federation:
        """Return a federation of all silos; one may be held out as the test set, and fits nothing."""
        if test is not None and test not in self.silos:
            raise DataError(f"there is no silo {test!r}{nearest(test, self.silos)}")
        trained = [silo for silo in self.silos if silo != test]
        held_out = None if test is None else self.silos[test]
        if not trained:
            raise DataError(f"no silo but the test set {test!r} is left to train on; give another silo")
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
        )


def read_tables(paths: Sequence[Path], settings: TableSettings, silo_column: str | None = None) -> SiloTables:
    """Read tables from files; without a column of silos each file is a silo."""
    notes: list[str] = []
    frames = {path: _frame(path, settings, notes) for path in paths}
    _check_names(frames, settings, silo_column)
    if silo_column is None:
        parts = dict(zip(_stems(paths), frames.values(), strict=True))
    else:
        parts = _by_silo(frames, silo_column, notes)
    return tables_of(parts, settings, notes)


def tables_of(
    frames: Mapping[str, pl.DataFrame], settings: TableSettings, notes: Sequence[str] = ()
) -> SiloTables:
    """Return the tables of silos by name; the label is one of their columns."""
    split = {name: settings.split_label(name, frame) for name, frame in frames.items()}
    parsed = LabelRule.parse(settings.label)
    rule = settings.rule([parsed.levels(label) for _, label, _ in split.values()])
    silos = {
        name: SiloTable(name, features, rule.encode(label), label, unlabelled)
        for name, (features, label, unlabelled) in split.items()
    }
    return SiloTables(silos, settings, rule, tuple(notes))


def read_features(path: Path, settings: TableSettings, silo: str) -> tuple[pl.DataFrame, pl.Series, int]:
    """Return features and labels of one silo's file, and how many rows have no label."""
    notes: list[str] = []
    found = settings.split_label(silo, _frame(path, settings, notes))
    Report(notes=[*notes, *value_notes({silo: found[0]}, settings)]).warn()
    return found


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
    frames: Mapping[Path, pl.DataFrame], settings: TableSettings, silo_column: str | None
) -> None:
    """Raise if a column that is named in the settings is in no file."""
    known = list(dict.fromkeys(name for frame in frames.values() for name in frame.columns))
    named = {"--categorical": settings.categorical, "--drop": settings.drop, "--keep": settings.keep}
    named["--categories"] = tuple(settings.categories)
    named["--missing"] = tuple(mark.rpartition("=")[0] for mark in settings.missing if "=" in mark)
    for option, columns in named.items():
        for column in columns:
            if column not in known:
                raise DataError(
                    f"{option} names the column {column!r}, which no file has{nearest(column, known)}"
                )
    if silo_column is not None and silo_column == LabelRule.parse(settings.label).column:
        raise DataError(
            f"the column {silo_column!r} is given both as the label and as the column that names silos; "
            "name another column for one of them"
        )
    for path, frame in frames.items():
        if silo_column is not None and silo_column not in frame.columns:
            hint = nearest(silo_column, frame.columns)
            raise DataError(f"{path} has no column {silo_column!r} that names silos{hint}")


def _stems(paths: Sequence[Path]) -> list[str]:
    """Return the name of each file's silo."""
    names = [path.name.removesuffix(".gz").rpartition(".")[0] for path in paths]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"two files are called {twice[0]!r}, and each names a silo; rename one")
    return names


def _by_silo(
    frames: Mapping[Path, pl.DataFrame], silo_column: str, notes: list[str]
) -> dict[str, pl.DataFrame]:
    """Return the rows of each silo, silos by name."""
    found: dict[str, list[pl.DataFrame]] = {}
    for path, frame in frames.items():
        _, values = column_values(frame[silo_column])
        names = names_of(values)
        if names.null_count():
            notes.append(f"{path} has {names.null_count()} rows without a silo, which are left out")
        rows = frame.drop(silo_column)
        for name in names.drop_nulls().unique(maintain_order=True):
            found.setdefault(name, []).append(rows.filter(names == name))
    ordered = sorted(found, key=_natural)
    return {name: pl.concat(found[name], how="diagonal_relaxed") for name in ordered}


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that puts "site 10" after "site 9"."""
    return [(int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]
