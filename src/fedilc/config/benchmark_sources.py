"""The benchmarks as the section [data] of an experiment. This file needs no torch."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from fedilc.config.section import Source
from fedilc.config.user_sources import TableSource
from fedilc.errors import DataError

if TYPE_CHECKING:
    from fedilc.data import Federation
    from fedilc.data.benchmarks.eicu.silos import PatientTable
    from fedilc.data.silo_store import SiloStore
    from fedilc.data.tables.silo_tables import SiloTables

Probability = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]


class ColorDigits(Source):
    """The small digits inside the package, coloured like Color-MNIST."""

    source: str = "color-digits"
    flips: list[Probability] = Field([0.15, 0.30, 0.45, 0.60, 0.75], min_length=1)
    test_flip: Probability = 0.90
    test_label_flip: Probability = 0.15

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation; it needs no download."""
        from fedilc.data.benchmarks.color_digits import color_digits

        return color_digits(seed, self.flips, self.test_flip, self.test_label_flip)


class ColorDigitsShift(Source):
    """The embedded digits with a colour that helps in every silo and misleads at the new site."""

    source: str = "color-digits-shift"
    flips: list[Probability] = Field([0.05, 0.10, 0.20, 0.30], min_length=1)
    test_flip: Probability = 0.90
    label_flip: Probability = Field(0.15, description="how often labels are wrong, in silos and test")
    copies: int = Field(8, ge=1, description="of each image, all but the first turned and shifted a little")

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation; it needs no download."""
        from fedilc.data.benchmarks.color_digits import color_digits_shift

        return color_digits_shift(seed, self.flips, self.test_flip, self.label_flip, self.copies)


class ColorMnist(ColorDigits):
    """The paper's Color-MNIST, from MNIST's own files."""

    source: str = "color-mnist"
    subset: Share = Field(1.0, description="of the training and validation images that is used")

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation, from the data folder."""
        from fedilc.data.benchmarks.color_mnist import color_mnist
        from fedilc.data.benchmarks.mnist_cifar10_reader import read_mnist
        from fedilc.data.download import data_folder

        images, digits = read_mnist(data_folder())
        flips = self.flips, self.test_flip, self.test_label_flip
        return color_mnist(images, digits, seed, *flips, self.subset)


class ManySilos(Source):
    """Thousands of small silos of coloured digits, opened one at a time."""

    source: str = "many-silos"
    silos: int = Field(10_000, ge=1, description="how many there are")
    examples: int = Field(20, ge=2, description="training examples per silo")
    validation: int = Field(5, ge=0, description="validation examples per silo")

    def store(self, seed: int, _folder: Path) -> SiloStore:
        """Return the silos, each made when it is opened."""
        from fedilc.data.benchmarks.color_digits import many_silos

        return many_silos(seed, self.silos, self.examples, self.validation)

    def build(self, seed: int, folder: Path) -> Federation:
        """Return all silos in memory."""
        from fedilc.data import Federation

        store = self.store(seed, folder)
        silos = [store.open(name) for name in store.silos]
        return Federation(store.name, silos, store.x_test, store.y_test, store.loss)


class SiteShortcuts(Source):
    """Synthetic sites, each with columns that tell the label there and are noise elsewhere."""

    source: str = "site-shortcuts"
    silos: int = Field(10, ge=1, description="how many there are")
    examples: int = Field(300, ge=2, description="training examples per silo")
    validation: int = Field(100, ge=0, description="validation examples per silo")
    features: int = Field(8, ge=0, description="columns that tell the label at every site")
    effect: float = Field(0.25, description="their mean for the label 1, and minus that for the label 0")
    markers: int = Field(6, ge=0, description="columns per silo that tell the label there alone")
    marker_effect: float = Field(1.5, description="the same for them")

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation; it needs no download."""
        from fedilc.data.benchmarks.site_shortcuts import site_shortcuts

        return site_shortcuts(seed, **self.model_dump(exclude={"source"}))


class RotatedCifar10(Source):
    """The paper's Rotated-CIFAR10, from CIFAR-10's own files."""

    source: str = "rotated-cifar10"
    angles: list[Annotated[list[float], Field(min_length=1)]] = Field(
        [[10, 25, 40], [60, 75, 90], [-10, -40, -90]],
        min_length=1,
        description="the rotations of each silo, in degrees",
    )
    test_range: list[float] = Field(
        [-90, 90], min_length=2, max_length=2, description="the lowest and the highest angle of the test"
    )
    subset: Share = Field(1.0, description="of the training and validation images that is used")
    size: Literal[16, 32] = Field(16, description="pixels per side: every second, as the authors', or all")

    @field_validator("test_range")
    @classmethod
    def _lowest_first(cls, test_range: list[float]) -> list[float]:
        if test_range[0] > test_range[1]:
            raise ValueError("give the lowest angle first, as in [-90, 90]")
        return test_range

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation, from the data folder."""
        from fedilc.data.benchmarks.mnist_cifar10_reader import read_cifar10
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
    subset: Share = Field(1.0, description="of each training silo that is used")

    @abstractmethod
    def patients(self, folder: Path) -> PatientTable:
        """Return the table of patients; `folder` is the experiment's folder."""

    def build(self, seed: int, folder: Path) -> Federation:
        """Return the federation of the patients."""
        from fedilc.data.benchmarks.eicu.silos import eicu_federation

        settings: dict[str, Any] = {name: getattr(self, name) for name in EicuSilos.model_fields}
        return eicu_federation(self.patients(folder), seed, settings.pop("source"), **settings)


class Eicu(EicuSilos):
    """The paper's eICU, from the table that `fedilc data eicu` makes of the user's own copy."""

    source: str = "eicu"
    file: str = Field("eicu.parquet", description="in the experiment's, the working or the data folder")

    def patients(self, folder: Path) -> PatientTable:
        """Return the prepared table."""
        from fedilc.data.benchmarks.eicu.silos import read_patients
        from fedilc.data.download import data_folder

        places = [folder / self.file, Path(self.file), data_folder() / self.file]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise DataError(
                f"{places[-1]} does not exist; make it from eICU's tables with `fedilc data eicu --from "
                "FOLDER`, or name yours with --set data.file=PATH"
            )
        return read_patients(found)


class EicuDemo(EicuSilos):
    """eICU's open demo, with regions as silos."""

    source: str = "eicu-demo"
    silos: int = Field(3, ge=1, description="how many train, those with the most patients")
    equal_sizes: bool = Field(False, description="cut each to the size of the smallest of them")

    def patients(self, _folder: Path) -> PatientTable:
        """Return the demo's patients, from its raw tables in the data folder."""
        from fedilc.data.benchmarks.eicu.silos import read_demo
        from fedilc.data.download import data_folder

        return read_demo(data_folder() / "eicu-demo")


class EicuSynthetic(EicuSilos):
    """Synthetic patients in the shape of the paper's eICU."""

    source: str = "eicu-synthetic"

    def patients(self, _folder: Path) -> PatientTable:
        """Return the synthetic patients, which are always the same."""
        from fedilc.data.benchmarks.eicu.synthetic import synthetic_patients

        return synthetic_patients()


class HeartDisease(TableSource):
    """The UCI heart disease data of four hospitals."""

    source: str = "heart-disease"
    says_notes: ClassVar[bool] = False  # they are in the documentation
    test: str | None = Field("va", description="the hospital that is held out as the test set")

    def tables(self, _folder: Path) -> SiloTables:
        """Return the four hospitals' tables, from the data folder or else from the package."""
        from fedilc.data.benchmarks.heart_disease import heart_disease
        from fedilc.data.download import data_folder

        return heart_disease(data_folder() / "heart-disease")
