"""Sources of silos: what the section [data] of an experiment can be.

The base class comes first, then the user's own silos (tables, images, silos elsewhere), then the data sets
inside the package. This file loads no torch.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    Field,
    PositiveInt,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from fedilc.algorithms.loss_registry import LossName, task_of
from fedilc.algorithms.registry import Registry
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import ConfigError, DataError, FedILCWarning, WrongTypeError
from fedilc.section import Section, validated

if TYPE_CHECKING:
    from fedilc.data import Federation
    from fedilc.data.silo_store import SiloStore
    from fedilc.data.tables.silo_files import Examined, SiloFiles
    from fedilc.data.tables.silo_tables import SiloTables

Probability = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]


class Source(Section):
    """The section [data] of an experiment: a source of silos.

    A source of one's own has its settings as fields, and is registered under the name that TOML files give:

    >>> class Halves(Source):
    ...     '''Two silos of as many examples each.'''
    ...     examples: int = 10
    ...     def build(self, seed, folder):
    ...         from fedilc import Federation, Silo
    ...         x = [[float(number)] for number in range(self.examples)]
    ...         y = [number % 2 for number in range(self.examples)]
    ...         return Federation("halves", [Silo("a", x, y), Silo("b", x, y)])
    >>> from fedilc.config import parse_experiment, register_source
    >>> register_source("halves", Halves)
    >>> run = parse_experiment({"data": {"source": "halves"}, "rounds": 1, "learning_rate": 0.1})
    >>> run.data.build(0, None)
    Federation('halves', silos: a, b)
    """

    source: str

    @abstractmethod
    def build(self, seed: int, folder: Path) -> Federation:
        """Return the federation of a seed; `folder` is the experiment's folder."""

    def store(self, seed: int, folder: Path) -> SiloStore:
        """Return the same federation with silos that are opened by name, one at a time if they are many."""
        from fedilc.data.silo_store import SiloStore

        return SiloStore.of(self.build(seed, folder))


class SourceRegistry(Registry[type[Source]]):
    """Sources of silos by the name that `data.source` gives."""

    def register(self, name: str, entry: type[Source]) -> None:
        """Add a source under a new name; silos that take their data from it must have it installed too."""
        if not (isinstance(entry, type) and issubclass(entry, Source)):
            raise WrongTypeError(
                f"register_source() was given {entry!r} as {name!r}; give a subclass of "
                "fedilc.data.sources.Source"
            )
        super().register(name, entry)

    def fields(self, name: str) -> Mapping[str, FieldInfo]:
        """Return the settings of a source, with their defaults."""
        return {key: field for key, field in self.get(name).model_fields.items() if key != "source"}


class FileSource(Source):
    """Silos from tables, which are examined before training: problems stop it, and notes are warnings."""

    test: str | None = Field(None, description="the silo that is held out as the test set, or a file")
    validation_share: float = Field(
        0.3, ge=0, lt=1, description="share of each silo that is held out for validation"
    )

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
    """Silos whose tables are preprocessed using sums over all silos."""

    says_notes: ClassVar[bool] = True

    @abstractmethod
    def tables(self, folder: Path) -> SiloTables:
        """Return the tables of all silos; `folder` is the experiment's folder."""

    def examine(self, seed: int, folder: Path, _keep: bool = True) -> Examined:
        """Read all silos; they stay in memory."""
        from fedilc.data.tables.silo_files import examine_tables

        found = examine_tables(self.tables(folder), self.source, self.test, seed, self.validation_share)
        if not self.says_notes:
            found.report.notes.clear()
        return found


class Tables(FileSource, TableSettings):
    """The user's own raw tables: one with a column of silos, or one file per silo."""

    source: str = "tables"
    files: str | list[str] | None = Field(None, description="a table, several, or a pattern: 'silos/*.csv'")
    silo_column: str | None = Field(
        None, description="the column that names silos; without it, each file is a silo"
    )
    exclude_sites: list[str] = Field([], description="silos to leave out")
    silos: dict[str, str] | str | None = Field(
        None, description="instead of files: a pattern, or name = file for each silo"
    )
    scale: bool = Field(True, description="false: all cells are numbers and are used as they are")
    in_memory: bool = Field(True, description="false: read each file only when its silo is asked")
    later: ClassVar[frozenset[str]] = frozenset({"silos", "scale", "in_memory", "patient_column", "scaling"})

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
            raise ValueError("in_memory = false needs scale = false and one file per silo")
        of_inputs = ("label", "drop", "columns", "loss")
        for name, known in TableSettings.model_fields.items():
            if not (self.scale or name in of_inputs or getattr(self, name) == known.default):
                raise ValueError(
                    f"scale = false uses numbers as they are and cannot be combined with {name}; remove one"
                )
        return self

    @model_serializer(mode="wrap")
    def _as_recorded(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the settings without unused ones that earlier versions did not record."""
        unused = {key for key in self.later if getattr(self, key) == type(self).model_fields[key].default}
        return {key: value for key, value in dump(self).items() if key not in unused}

    def named(self, folder: Path) -> str:
        """Return the name of the federation."""
        return folder.resolve().name

    def reader(self, folder: Path) -> SiloFiles:
        """Return the files and how they are read; `folder` is the experiment's folder."""
        from fedilc.data.tables.silo_files import SiloFiles

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
    scale: bool = Field(False, description="true: preprocess columns as for tables")
    later: ClassVar[frozenset[str]] = frozenset(
        {*TableSettings.model_fields, "files", "silo_column", "exclude_sites", "scale"} - {"label", "loss"}
    )

    def named(self, folder: Path) -> str:
        """Return the name of the federation, as earlier versions recorded it."""
        return folder.name or "files"


class Images(Source):
    """The user's own pictures in folders DOMAIN/CLASS; every domain is a silo."""

    source: str = "images"
    folder: str = Field(description="the folder with one folder per domain, each with one folder per class")
    image_size: int | None = Field(
        None, ge=1, le=4096, description="pixels per side to which pictures are resized"
    )
    backbone: str | None = Field(
        None, description="a frozen network, by name or module:function, whose features are the inputs"
    )
    test: str | None = Field(None, description="the domain that is held out as the test set")
    validation_share: float = Field(
        0.3, ge=0, lt=1, description="share of each silo that is held out for validation"
    )

    @model_validator(mode="after")
    def _has_size(self) -> Images:
        if self.image_size is None and self.backbone is None:
            raise ValueError("give image_size, the pixels per side, or a backbone, which has its own")
        return self

    @model_serializer(mode="wrap")
    def _as_recorded(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the settings without a backbone if there is none, as earlier versions recorded them."""
        return {key: value for key, value in dump(self).items() if key != "backbone" or value is not None}

    def build(self, seed: int, folder: Path) -> Federation:
        """Return the federation, from a folder relative to the experiment's own."""
        from fedilc.data.image_folder import read_image_folder

        place = folder / self.folder
        if not place.is_dir():
            raise DataError(f"{place} is not a folder; correct data.folder")
        found = read_image_folder(place, self.image_size, self.backbone)
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
        min_length=1, description="the shape of the input, or of each input by name or in order"
    )
    columns: list[str] | None = Field(None, description="the inputs' columns in the silos' tables, in order")
    loss: LossName = Field("binary", description="the kind of task")
    classes: int = Field(1, ge=1, description="the number of classes, for multiclass")
    test: str | None = Field(None, description="a file with the coordinator's own test set")
    label: str = Field("label", description="the label's column in that file")

    @model_validator(mode="after")
    def _agree(self) -> Remote:
        if self.columns is not None and self.inputs != [len(self.columns)]:
            raise ValueError(
                f"{len(self.columns)} columns are named, but inputs is {self.inputs}; name each input"
            )
        if self.test is not None and (isinstance(self.inputs, dict) or isinstance(self.inputs[0], list)):
            raise ValueError("a test file holds one input per row, but inputs names several; leave test out")
        if task_of(self.loss) == "multiclass" and self.classes < 2:
            raise ValueError("loss = 'multiclass' needs classes, the number of classes")
        return self


class RemoteTables(RemoteSource, TableSettings):
    """Tables of silos that join a coordinator, which sees sums and names of columns, but never a row."""

    source: str = "remote-tables"
    test: str | None = Field(None, description="a table with the coordinator's own test set")
    min_category: int = Field(10, ge=10, description="as for local tables; silos may only raise it")


class RemoteImages(RemoteSource):
    """Pictures of silos that join a coordinator, which sees neither pictures nor features of them.

    Every silo names its backbone itself; it must have the digest of the coordinator's.
    """

    source: str = "remote-images"
    classes: list[str] = Field(min_length=2, description="the classes, by the names of their folders")
    backbone: str = Field(description="a frozen network, by name or module:function")
    image_size: int | None = Field(None, ge=1, le=4096, description="pixels per side; none is the backbone's")
    test: str | None = Field(None, description="a folder CLASS/picture.png with the coordinator's test set")


class ColorDigits(Source):
    """Small digits inside the package, with a colour that misleads to a different degree in every silo."""

    source: str = "color-digits"
    flips: list[Probability] = Field(
        [0.15, 0.30, 0.45, 0.60, 0.75], min_length=1, description="how often the colour misleads, by silo"
    )
    test_flip: Probability = Field(0.90, description="the same at the test site")
    test_label_flip: Probability = Field(0.15, description="how often labels of the test are wrong")

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation; it needs no download."""
        from fedilc.data.embedded_data import color_digits

        return color_digits(seed, self.flips, self.test_flip, self.test_label_flip)


class ColorDigitsShift(Source):
    """The embedded digits with a colour that helps in every silo and misleads at the new site."""

    source: str = "color-digits-shift"
    flips: list[Probability] = Field(
        [0.05, 0.10, 0.20, 0.30], min_length=1, description="how often the colour misleads, by silo"
    )
    test_flip: Probability = Field(0.90, description="the same at the test site")
    label_flip: Probability = Field(0.15, description="how often labels are wrong, in silos and in the test")
    copies: int = Field(8, ge=1, description="copies of each image; all but the first are turned and shifted")

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation; it needs no download."""
        from fedilc.data.embedded_data import color_digits_shift

        return color_digits_shift(seed, self.flips, self.test_flip, self.label_flip, self.copies)


class ManySilos(Source):
    """Thousands of small silos of coloured digits, opened one at a time."""

    source: str = "many-silos"
    silos: int = Field(10_000, ge=1, description="the number of silos")
    examples: int = Field(20, ge=2, description="training examples per silo")
    validation: int = Field(5, ge=0, description="validation examples per silo")

    def store(self, seed: int, _folder: Path) -> SiloStore:
        """Return the silos, each made when it is opened."""
        from fedilc.data.embedded_data import many_silos

        return many_silos(seed, self.silos, self.examples, self.validation)

    def build(self, seed: int, folder: Path) -> Federation:
        """Return all silos in memory."""
        from fedilc.data import Federation

        store = self.store(seed, folder)
        silos = [store.open(name) for name in store.silos]
        return Federation(store.name, silos, store.x_test, store.y_test, store.loss)


class SiteShortcuts(Source):
    """Synthetic sites, each with columns that predict the label there and are noise elsewhere."""

    source: str = "site-shortcuts"
    silos: int = Field(10, ge=1, description="the number of silos")
    examples: int = Field(300, ge=2, description="training examples per silo")
    validation: int = Field(100, ge=0, description="validation examples per silo")
    features: int = Field(8, ge=0, description="columns that predict the label at every site")
    effect: float = Field(0.25, description="their mean for the label 1; its negative for the label 0")
    markers: int = Field(6, ge=0, description="columns per silo that predict the label only there")
    marker_effect: float = Field(1.5, description="the same for markers")

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation; it needs no download."""
        from fedilc.data.embedded_data import site_shortcuts

        return site_shortcuts(seed, **self.model_dump(exclude={"source"}))


class HeartDisease(TableSource):
    """The UCI heart disease data of four hospitals."""

    source: str = "heart-disease"
    says_notes: ClassVar[bool] = False  # they are in the documentation
    test: str | None = Field("va", description="the hospital that is held out as the test set")

    def tables(self, _folder: Path) -> SiloTables:
        """Return the four hospitals' tables, from the data folder if they are there, or from the package."""
        from fedilc.data.download import data_folder
        from fedilc.data.embedded_data import heart_disease

        return heart_disease(data_folder() / "heart-disease")


__all__ = ["Section", "Source", "SourceRegistry", "validated"]
