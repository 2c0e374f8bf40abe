"""The user's own silos as the section [data] of an experiment: files, tables, images, remote silos.

This file needs no torch.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, PositiveInt, field_validator, model_validator

from fedilc.algorithms.loss_name import LossName, task_of
from fedilc.config.section import Section, Source
from fedilc.errors import ConfigError, DataError, FedILCWarning

if TYPE_CHECKING:
    from fedilc.data import Federation
    from fedilc.data.silo_store import SiloStore
    from fedilc.data.tables.numeric_files import NumericFiles
    from fedilc.data.tables.silo_tables import SiloTables, TableSettings


class Files(Source):
    """The user's own silos, one file each."""

    source: str = "files"
    silos: dict[str, str] | str = Field(description="a pattern like 'silos/*.csv', or name = file")
    label: str = Field("label", description="the column that holds the label")
    test: str | None = None
    loss: LossName = "binary"
    validation_share: float = Field(0.3, ge=0, lt=1)
    in_memory: bool = Field(True, description="false: each file is read when its silo is asked")

    @field_validator("silos", mode="before")
    @classmethod
    def _pattern_or_table(cls, value: object) -> object:
        files = list(value.values()) if isinstance(value, dict) else [value]
        if not files or not all(isinstance(file, str) and file for file in files):
            raise ValueError("give a pattern like 'silos/*.csv', or a table of name = \"file\"")
        return value

    def build(self, seed: int, folder: Path) -> Federation:
        """Return the federation, from files given relative to the experiment's own folder."""
        return self.files(folder).federation(seed)

    def store(self, seed: int, folder: Path) -> SiloStore:
        """Return the silos; raise all problems of the files, and warn of their notes."""
        files = self.files(folder)
        found = files.examine(seed, self.in_memory)
        found.report.require()
        found.report.warn()
        return files.store(found, seed)

    def files(self, folder: Path) -> NumericFiles:
        """Return the files and how they are read; `folder` is the experiment's folder."""
        from fedilc.data.tables.numeric_files import NumericFiles

        return NumericFiles(folder, self.silos, self.label, self.test, self.loss, self.validation_share)


class ColumnSettings(Section):
    """Settings of a table's columns."""

    label: str = Field(description="the column that holds the label, or a comparison such as 'num>0'")
    positive: str | None = Field(None, description="the value of the label that counts as 1")
    categorical: list[str] = Field([], description="columns of numbers that are names")
    drop: list[str] = Field([], description="columns that are not used")
    keep: list[str] = Field([], description="columns that are used although they look like identifiers")
    categories: dict[str, list[str]] = Field(
        {}, description="the names of some columns, or the label's classes"
    )
    missing: list[str] = Field([], description="further marks of missing values: '-9', or 'chol=0'")
    loss: LossName | None = Field(None, description="the kind of task; none derives it from the label")
    columns: list[str] = Field(
        [], description="the only columns that are used; none: all but the dropped ones"
    )
    min_category: int = Field(
        10, ge=1, description="the rows of a silo that a category or a sum needs; rarer ones are 'other'"
    )
    min_rows: int = Field(
        50, ge=1, description="the rows that a summary needs; smaller local tables keep rare values"
    )
    round_survey: int | None = Field(
        None, ge=2, le=10**9, description="the unit to which silos' counts and sums are rounded"
    )

    def settings(self) -> TableSettings:
        """Return the settings that tables are read with."""
        from fedilc.data.tables.silo_tables import TableSettings

        return TableSettings(**{name: getattr(self, name) for name in ColumnSettings.model_fields})


class TableSource(Source):
    """Silos whose tables become inputs by a preprocessing that is fitted to federated sums."""

    test: str | None = Field(None, description="the silo that is held out as the test set")
    validation_share: float = Field(0.3, ge=0, lt=1)
    says_notes: ClassVar[bool] = True

    @abstractmethod
    def tables(self, folder: Path) -> SiloTables:
        """Return the tables of all silos; `folder` is the experiment's folder."""

    def build(self, seed: int, folder: Path) -> Federation:
        """Return the federation of all silos but the one held out; warn of what is probably a mistake."""
        from fedilc.data.checks.federation import Report
        from fedilc.data.checks.notes import details, grouped

        tables = self.tables(folder)
        Report(problems=details(tables.copies)).require()
        for note in grouped(tables.findings) if self.says_notes else ():
            warnings.warn(note, FedILCWarning, stacklevel=2)
        name = self.source if self.source != "tables" else folder.resolve().name
        return tables.federation(name, test=self.test, seed=seed, validation=self.validation_share)


class Tables(TableSource, ColumnSettings):
    """The user's own tables, without preparation: one with a column of silos, or one file per silo."""

    source: str = "tables"
    files: str | list[str] = Field(description="a table, several, or a pattern like 'silos/*.csv'")
    silo_column: str | None = Field(None, description="the column that names silos; none: a file is a silo")
    exclude_sites: list[str] = Field([], description="silos that are not read")

    def tables(self, folder: Path) -> SiloTables:
        """Return the tables of all silos, from files relative to the experiment's folder."""
        from fedilc.data.tables.numeric_files import matching
        from fedilc.data.tables.silo_tables import read_tables

        patterns = [self.files] if isinstance(self.files, str) else self.files
        found = [folder / path for pattern in patterns for path in matching(pattern, folder).values()]
        return read_tables(found, self.settings(), self.silo_column, self.exclude_sites)


class Images(Source):
    """The user's own pictures in folders DOMAIN/CLASS; every domain is a silo."""

    source: str = "images"
    folder: str = Field(description="the folder with a folder per domain, and in it one per class")
    image_size: int = Field(ge=1, le=4096, description="pixels per side to which pictures are resized")
    test: str | None = Field(None, description="the domain that is held out as the test set")
    validation_share: float = Field(0.3, ge=0, lt=1)

    def build(self, seed: int, folder: Path) -> Federation:
        """Return the federation, from a folder relative to the experiment's own."""
        from fedilc.data.image_folder import read_image_folder

        place = folder / self.folder
        if not place.is_dir():
            raise DataError(f"{place} is not a folder; correct data.folder")
        found = read_image_folder(place, self.image_size)
        for note in found.notes:
            warnings.warn(note, FedILCWarning, stacklevel=2)
        name = place.resolve().name
        return found.federation(name, test=self.test, seed=seed, validation=self.validation_share)


class RemoteSource(Source):
    """Silos that join a coordinator; none of their examples is here."""

    silos: list[str] = Field(min_length=1, description="the names of the silos, in order")

    @field_validator("silos")
    @classmethod
    def _differ(cls, silos: list[str]) -> list[str]:
        if len(set(silos)) < len(silos):
            raise ValueError("two silos have the same name")
        return silos

    def build(self, _seed: int, _folder: Path) -> Federation:
        """Raise: the silos' examples stay with them."""
        raise ConfigError("the silos of this experiment are elsewhere; start it with `fedilc serve`")


class Remote(RemoteSource):
    """Silos that join a coordinator with inputs of a given shape."""

    source: str = "remote"
    inputs: list[PositiveInt] | dict[str, list[PositiveInt]] | list[list[PositiveInt]] = Field(
        min_length=1, description="the shape of one input, or of each by name or in order"
    )
    columns: list[str] | None = Field(None, description="the inputs' columns in the silos' tables, in order")
    loss: LossName = "binary"
    classes: int = Field(1, ge=1, description="how many classes; for multiclass")
    test: str | None = Field(None, description="a file with a test set of the coordinator's own")
    label: str = Field("label", description="the column of that file that holds the label")

    @model_validator(mode="after")
    def _agree(self) -> Remote:
        if self.columns is not None and self.inputs != [len(self.columns)]:
            raise ValueError(f"{len(self.columns)} columns are named, but inputs is {self.inputs}")
        if self.test is not None and (isinstance(self.inputs, dict) or isinstance(self.inputs[0], list)):
            raise ValueError("a test file holds one input per row, and inputs names several; leave test out")
        if task_of(self.loss) == "multiclass" and self.classes < 2:
            raise ValueError("loss = 'multiclass' needs classes, the number of classes")
        return self


class RemoteTables(RemoteSource, ColumnSettings):
    """Tables of silos that join a coordinator, which sees sums and names of their columns, never a row."""

    source: str = "remote-tables"
    test: str | None = Field(None, description="a table with a test set of the coordinator's own")
    min_category: int = Field(10, ge=10, description="as for local tables; a silo may only raise it")
