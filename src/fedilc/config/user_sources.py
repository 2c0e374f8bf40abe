"""The user's own silos as the section [data] of an experiment: files, tables, images, remote silos.

This file needs no torch.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import (
    Field,
    PositiveInt,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from fedilc.algorithms.loss_name import LossName, task_of
from fedilc.config.section import Source
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import ConfigError, DataError, FedILCWarning

if TYPE_CHECKING:
    from fedilc.data import Federation
    from fedilc.data.silo_store import SiloStore
    from fedilc.data.tables.numeric_files import Examined, SiloFiles
    from fedilc.data.tables.silo_tables import SiloTables


class FileSource(Source):
    """Silos from tables, which are examined before training: problems stop it, and notes are warnings."""

    test: str | None = Field(None, description="the silo that is held out as the test set, or a file")
    validation_share: float = Field(0.3, ge=0, lt=1)

    @abstractmethod
    def examine(self, seed: int, folder: Path, keep: bool = True) -> Examined:
        """Read all silos once; without `keep`, those that can be read again do not stay in memory."""

    def build(self, seed: int, folder: Path) -> Federation:
        """Return the federation; raise all problems of the tables, and warn of their notes."""
        return self.examine(seed, folder).federation()

    def store(self, seed: int, folder: Path) -> SiloStore:
        """Return the silos; raise all problems of the tables, and warn of their notes."""
        return self.examine(seed, folder, False).store()


class TableSource(FileSource):
    """Silos whose tables become inputs by a preprocessing that is fitted to federated sums."""

    says_notes: ClassVar[bool] = True

    @abstractmethod
    def tables(self, folder: Path) -> SiloTables:
        """Return the tables of all silos; `folder` is the experiment's folder."""

    def examine(self, seed: int, folder: Path, _keep: bool = True) -> Examined:
        """Read all silos; they stay in memory."""
        from fedilc.data.tables.numeric_files import examine_tables

        found = examine_tables(self.tables(folder), self.source, self.test, seed, self.validation_share)
        if not self.says_notes:
            found.report.notes.clear()
        return found


class Tables(FileSource, TableSettings):
    """The user's own tables, without preparation: one with a column of silos, or one file per silo."""

    source: str = "tables"
    files: str | list[str] | None = Field(None, description="a table, several, or a pattern: 'silos/*.csv'")
    silo_column: str | None = Field(None, description="the column that names silos; none: a file is a silo")
    exclude_sites: list[str] = Field([], description="silos that are not read")
    silos: dict[str, str] | str | None = Field(
        None, description="instead of files: a pattern, or name = file"
    )
    scale: bool = Field(True, description="false: all cells are numbers, which are taken as they are")
    in_memory: bool = Field(True, description="false: each file is read when its silo is asked")
    later: ClassVar[frozenset[str]] = frozenset({"silos", "scale", "in_memory"})

    @field_validator("silos", mode="before")
    @classmethod
    def _pattern_or_table(cls, value: object) -> object:
        files = list(value.values()) if isinstance(value, dict) else [value]
        if value is not None and not (files and all(isinstance(file, str) and file for file in files)):
            raise ValueError("give a pattern like 'silos/*.csv', or a table of name = \"file\"")
        return value

    @model_validator(mode="after")
    def _agree(self) -> Tables:
        if (self.files is None) == (self.silos is None):
            raise ValueError("give either files, or silos as a pattern or as name = file")
        if not self.in_memory and (self.scale or self.silo_column is not None):
            raise ValueError("in_memory = false needs scale = false and a file per silo")
        of_inputs = ("label", "drop", "columns", "loss")
        for name, known in TableSettings.model_fields.items():
            if not (self.scale or name in of_inputs or getattr(self, name) == known.default):
                raise ValueError(f"scale = false takes numbers as they are, without {name}; remove one")
        return self

    @model_serializer(mode="wrap")
    def _as_recorded(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the settings without the later ones that are not used, which earlier runs did not record."""
        unused = {key for key in self.later if getattr(self, key) == type(self).model_fields[key].default}
        return {key: value for key, value in dump(self).items() if key not in unused}

    def named(self, folder: Path) -> str:
        """Return the name of the federation."""
        return folder.resolve().name

    def reader(self, folder: Path) -> SiloFiles:
        """Return the files and how they are read; `folder` is the experiment's folder."""
        from fedilc.data.tables.numeric_files import SiloFiles

        files = [self.files] if isinstance(self.files, str) else self.files or ()
        return SiloFiles(
            folder,
            self.named(folder),
            files if self.silos is None else self.silos,
            self.settings(),
            self.test,
            self.validation_share,
            self.scale,
            self.silo_column,
            self.exclude_sites,
        )

    def examine(self, seed: int, folder: Path, keep: bool = True) -> Examined:
        """Read every file once; without `keep`, and with `in_memory = false`, examples do not stay."""
        return self.reader(folder).examine(seed, keep or self.in_memory)

    def tables(self, folder: Path) -> SiloTables:
        """Return the tables of all silos, without a test set that is a file of its own."""
        return replace(self.reader(folder), test=None).tables()


class Files(Tables):
    """The user's own silos, one file each, whose cells are all numbers: tables with `scale = false`."""

    source: str = "files"
    silos: dict[str, str] | str = Field(description="a pattern like 'silos/*.csv', or name = file")
    label: str = Field("label", description="the column that holds the label")
    loss: LossName | None = "binary"
    scale: bool = Field(False, description="true: prepare columns as tables do")
    later: ClassVar[frozenset[str]] = frozenset(
        {*TableSettings.model_fields, "files", "silo_column", "exclude_sites", "scale"} - {"label", "loss"}
    )

    def named(self, folder: Path) -> str:
        """Return the name of the federation, as in the first runs of files."""
        return folder.name or "files"


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


class RemoteTables(RemoteSource, TableSettings):
    """Tables of silos that join a coordinator, which sees sums and names of their columns, never a row."""

    source: str = "remote-tables"
    test: str | None = Field(None, description="a table with a test set of the coordinator's own")
    min_category: int = Field(10, ge=10, description="as for local tables; a silo may only raise it")
