"""The sources of silos, as a section of an experiment. This file needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from fedilc.algorithms.loss_name import LossName
from fedilc.config.source import Source
from fedilc.config.table_sources import HeartDisease, Images, RemoteTables, Tables
from fedilc.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fedilc.data import Federation
    from fedilc.data.silo_store import SiloStore
    from fedilc.data.tables.silo_files import Examined, SiloFiles


class ColorDigits(Source):
    """The federation inside the package."""

    source: str = "color-digits"
    flips: list[float] = Field([0.15, 0.30, 0.45, 0.60, 0.75])
    test_flip: float = 0.90
    test_label_flip: float = 0.15

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation of the digits in the package."""
        from fedilc.data.benchmarks.color_mnist import color_digits

        return color_digits(seed, self.flips, self.test_flip, self.test_label_flip)


class ColorDigitsShift(Source):
    """The embedded digits with a colour that helps in every silo and misleads at the new site."""

    source: str = "color-digits-shift"
    flips: list[float] = Field([0.05, 0.10, 0.20, 0.30])
    test_flip: float = 0.90
    label_flip: float = Field(0.15, description="how often labels are wrong, in silos and test")
    copies: int = Field(8, ge=1, description="of each image, all but the first turned and shifted a little")

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation, from the digits that the package carries."""
        from fedilc.data.benchmarks.color_mnist import color_digits_shift

        return color_digits_shift(seed, self.flips, self.test_flip, self.label_flip, self.copies)


class ColorMnist(ColorDigits):
    """The paper's Color-MNIST, from MNIST's own files."""

    source: str = "color-mnist"
    subset: float = Field(1.0, gt=0, le=1, description="the part of training and validation images used")

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation, from the data folder."""
        from fedilc.data.benchmarks.color_mnist import color_mnist
        from fedilc.data.benchmarks.image_files import read_mnist
        from fedilc.data.download import data_folder

        images, digits = read_mnist(data_folder())
        flips = self.flips, self.test_flip, self.test_label_flip
        return color_mnist(images, digits, seed, *flips, self.subset)


class RotatedCifar10(Source):
    """The paper's Rotated-CIFAR10, from CIFAR-10's own files."""

    source: str = "rotated-cifar10"
    angles: list[list[float]] = Field(
        [[10, 25, 40], [60, 75, 90], [-10, -40, -90]], description="the rotations of each silo, in degrees"
    )
    test_range: list[float] = Field([-90, 90], description="the lowest and the highest angle of the test")
    subset: float = Field(1.0, gt=0, le=1, description="the part of training and validation images used")
    size: Literal[16, 32] = Field(16, description="pixels per side: every second, as the authors', or all")

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation, from the data folder."""
        from fedilc.data.benchmarks.image_files import read_cifar10
        from fedilc.data.benchmarks.rotated_cifar10 import rotated_cifar10
        from fedilc.data.download import data_folder

        photographs = read_cifar10(data_folder())
        return rotated_cifar10(*photographs, seed, self.angles, self.test_range, self.subset, self.size)


class EicuSilos(Source):
    """The settings of all eICU sources: how a table of patients becomes silos and a test."""

    silos: int = Field(20, ge=1, description="how many train, those with the most patients")
    equal_sizes: bool = Field(True, description="cut each to the size of the smallest of them")
    oversample: bool = Field(True, description="repeat the rarer outcome until both are as frequent")
    validation_share: float = Field(0.3, ge=0, lt=1)
    subset: float = Field(1.0, gt=0, le=1, description="the part of each training silo used")

    def split(self) -> dict[str, Any]:
        """Return the settings as arguments of `eicu_federation`."""
        return {name: getattr(self, name) for name in EicuSilos.model_fields if name != "source"}


class Eicu(EicuSilos):
    """The paper's eICU, from the table that `fedilc data eicu` makes of the user's own copy."""

    source: str = "eicu"
    file: str = Field("eicu.parquet", description="in the experiment's, the working or the data folder")

    def build(self, seed: int, folder: Path) -> Federation:
        """Return the federation, from the prepared table."""
        from fedilc.data.benchmarks.eicu.silos import eicu_federation
        from fedilc.data.download import data_folder

        places = [folder / self.file, Path(self.file), data_folder() / self.file]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise DataError(
                f"{places[-1]} does not exist; make it from eICU's tables with `fedilc data eicu --from "
                "FOLDER`, or name yours with --set data.file=PATH"
            )
        return eicu_federation(found, seed, **self.split())


class EicuDemo(EicuSilos):
    """eICU's open demo, with regions as silos."""

    source: str = "eicu-demo"
    silos: int = Field(3, ge=1, description="how many train, those with the most patients")
    equal_sizes: bool = Field(False, description="cut each to the size of the smallest of them")

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation, from the demo's raw tables in the data folder."""
        from fedilc.data.benchmarks.eicu.silos import eicu_federation, read_demo
        from fedilc.data.download import data_folder

        return eicu_federation(read_demo(data_folder() / "eicu-demo"), seed, name=self.source, **self.split())


class EicuSynthetic(EicuSilos):
    """Synthetic patients in the shape of the paper's eICU."""

    source: str = "eicu-synthetic"

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation of synthetic patients, which are always the same."""
        from fedilc.data.benchmarks.eicu.synthetic import eicu_synthetic

        return eicu_synthetic(seed, **self.split())


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
        return self._files().federation(seed, folder)

    def store(self, seed: int, folder: Path) -> SiloStore:
        """Return the silos; raise all problems of the files, and warn of their notes."""
        found = self.examine(seed, folder)
        found.report.require()
        found.report.warn()
        return self.store_of(found, seed, folder)

    def examine(self, seed: int, folder: Path) -> Examined:
        """Read every file once, and return all problems and notes."""
        return self._files().examine(seed, folder, keep=self.in_memory)

    def store_of(self, found: Examined, seed: int, folder: Path) -> SiloStore:
        """Return the silos that were examined; if they do not stay in memory, each is read when opened."""
        return self._files().store(found, seed, folder)

    def _files(self) -> SiloFiles:
        from fedilc.data.tables.silo_files import SiloFiles

        return SiloFiles(self.silos, self.label, self.test, self.loss, self.validation_share)


class ManySilos(Source):
    """Thousands of small silos of coloured digits, opened one at a time."""

    source: str = "many-silos"
    silos: int = Field(10_000, ge=1, description="how many there are")
    examples: int = Field(20, ge=2, description="training examples per silo")
    validation: int = Field(5, ge=0, description="validation examples per silo")

    def store(self, seed: int, _folder: Path) -> SiloStore:
        """Return the silos, each made when it is opened."""
        from fedilc.data.benchmarks.many_silos import many_silos

        return many_silos(seed, self.silos, self.examples, self.validation)

    def build(self, seed: int, folder: Path) -> Federation:
        """Return all silos in memory."""
        from fedilc.data import Federation

        store = self.store(seed, folder)
        silos = [store.open(name) for name in store.silos]
        return Federation(store.name, silos, store.x_test, store.y_test, store.loss)


class Remote(Source):
    """Silos that join a coordinator; none of their examples is here."""

    source: str = "remote"
    silos: list[str] = Field(min_length=1, description="the names of the silos, in order")
    inputs: list[PositiveInt] = Field(min_length=1, description="the shape of one input")
    columns: list[str] | None = Field(None, description="the inputs' columns in the silos' tables, in order")
    loss: LossName = "binary"
    classes: int = Field(1, ge=1, description="how many classes; for multiclass")
    test: str | None = Field(None, description="a file with a test set of the coordinator's own")
    label: str = Field("label", description="the column of that file that holds the label")

    @model_validator(mode="after")
    def _agree(self) -> Remote:
        if len(set(self.silos)) < len(self.silos):
            raise ValueError("two silos have the same name")
        if self.columns is not None and self.inputs != [len(self.columns)]:
            raise ValueError(f"{len(self.columns)} columns are named, but inputs is {self.inputs}")
        if self.loss == "multiclass" and self.classes < 2:
            raise ValueError("loss = 'multiclass' needs classes, the number of classes")
        return self

    def build(self, _seed: int, _folder: Path) -> Federation:
        """Raise: the silos' examples stay with them."""
        raise ConfigError("the silos of this experiment are elsewhere; start it with `fedilc serve`")


SOURCES: dict[str, type[Source]] = {
    "color-digits": ColorDigits,
    "color-digits-shift": ColorDigitsShift,
    "color-mnist": ColorMnist,
    "rotated-cifar10": RotatedCifar10,
    "eicu": Eicu,
    "eicu-demo": EicuDemo,
    "eicu-synthetic": EicuSynthetic,
    "files": Files,
    "heart-disease": HeartDisease,
    "images": Images,
    "many-silos": ManySilos,
    "remote": Remote,
    "remote-tables": RemoteTables,
    "tables": Tables,
}
