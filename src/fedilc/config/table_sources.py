"""Tables as sources of silos, as a section of an experiment. This file needs no torch."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from fedilc.algorithms.loss_name import LossName
from fedilc.config.section import Section
from fedilc.config.source import Source
from fedilc.errors import ConfigError, DataError, FedILCWarning

if TYPE_CHECKING:
    from fedilc.data import Federation
    from fedilc.data.silo_store import SiloStore
    from fedilc.data.tables.silo_tables import SiloTables, TableSettings


class TableSource(Source):
    """Silos whose tables become inputs by a preprocessing that is fitted to federated sums."""

    test: str | None = Field(None, description="the silo that is held out as the test set")
    validation_share: float = Field(0.3, ge=0, lt=1)
    says_notes: ClassVar[bool] = True

    @abstractmethod
    def tables(self, folder: Path) -> SiloTables:
        """Return the tables of all silos; `folder` is the experiment's folder."""

    def build(self, seed: int, folder: Path) -> Federation:
        """Return the federation of all silos except the one that is held out."""
        return self._federation(self.tables(folder), seed, folder)

    def store(self, seed: int, folder: Path) -> SiloStore:
        """Return the same federation, and warn of columns left out and of probable mistakes."""
        from fedilc.data.silo_store import SiloStore

        tables = self.tables(folder)
        if self.says_notes:
            for note in tables.notes:
                warnings.warn(note, FedILCWarning, stacklevel=2)
        return SiloStore.of(self._federation(tables, seed, folder))

    def _federation(self, tables: SiloTables, seed: int, folder: Path) -> Federation:
        name = self.source if self.source != "tables" else folder.resolve().name
        return tables.federation(name, test=self.test, seed=seed, validation=self.validation_share)


class ColumnSettings(Section):
    """Settings of a table's columns."""

    label: str = Field(description="the column that holds the label, or a comparison such as 'num>0'")
    positive: str | None = Field(None, description="the value of the label that counts as 1")
    categorical: list[str] = Field([], description="columns of numbers that are names")
    drop: list[str] = Field([], description="columns that are not used")
    keep: list[str] = Field([], description="columns that are used although they look like identifiers")
    categories: dict[str, list[str]] = Field({}, description="the names of some columns, if they are known")
    missing: list[str] = Field([], description="further marks of missing values: '-9', or 'chol=0'")
    loss: LossName | None = Field(None, description="the kind of task; none derives it from the label")

    def settings(self) -> TableSettings:
        """Return the settings that tables are read with."""
        from fedilc.data.tables.silo_tables import TableSettings

        values: dict[str, Any] = {name: getattr(self, name) for name in ColumnSettings.model_fields}
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return TableSettings(**values)


class Tables(TableSource, ColumnSettings):
    """The user's own tables, without preparation: one with a column of silos, or one file per silo."""

    source: str = "tables"
    files: str | list[str] = Field(description="a table, several, or a pattern like 'silos/*.csv'")
    silo_column: str | None = Field(None, description="the column that names silos; none: a file is a silo")

    def tables(self, folder: Path) -> SiloTables:
        """Return the tables of all silos, from files relative to the experiment's folder."""
        from fedilc.data.tables.silo_files import matching
        from fedilc.data.tables.silo_tables import read_silo_tables

        patterns = [self.files] if isinstance(self.files, str) else self.files
        found = [folder / path for pattern in patterns for path in matching(pattern, folder).values()]
        return read_silo_tables(found, self.settings(), self.silo_column)


class RemoteTables(Source, ColumnSettings):
    """Tables of silos that join a coordinator, which sees sums and names of their columns, never a row."""

    source: str = "remote-tables"
    silos: list[str] = Field(min_length=1, description="the names of the silos, in order")
    test: str | None = Field(None, description="a table with a test set of the coordinator's own")

    @field_validator("silos")
    @classmethod
    def _differ(cls, silos: list[str]) -> list[str]:
        if len(set(silos)) < len(silos):
            raise ValueError("two silos have the same name")
        return silos

    def build(self, _seed: int, _folder: Path) -> Federation:
        """Raise: the silos' tables stay with them."""
        raise ConfigError("the silos of this experiment are elsewhere; start it with `fedilc serve`")


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


class HeartDisease(TableSource):
    """The UCI heart disease data of four hospitals."""

    source: str = "heart-disease"
    says_notes: ClassVar[bool] = False  # they are in the documentation
    test: str | None = Field("va", description="the hospital that is held out as the test set")

    @property
    def silos(self) -> list[str]:
        """Return the hospitals that train."""
        from fedilc.data.benchmarks.heart_disease import HOSPITALS

        return [hospital for hospital in HOSPITALS if hospital != self.test]

    def tables(self, _folder: Path) -> SiloTables:
        """Return the four hospitals' tables, from the data folder."""
        from fedilc.data.benchmarks.heart_disease import heart_disease
        from fedilc.data.download import data_folder

        return heart_disease(data_folder() / "heart-disease")
