"""The paper's benchmarks as the section [data] of an experiment. This file loads no torch."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from fedilc.data.sources import ColorDigits, Share, Source
from fedilc.errors import DataError

if TYPE_CHECKING:
    from fedilc.data import Federation
    from fedilc.paper.eicu import PatientTable


class ColorMnist(ColorDigits):
    """The paper's Color-MNIST, from MNIST's own files."""

    source: str = "color-mnist"
    subset: Share = Field(1.0, description="the share of the training and validation images to use")

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation, from the data folder."""
        from fedilc.data.download import data_folder
        from fedilc.paper.pictures import color_mnist, read_mnist

        images, digits = read_mnist(data_folder())
        flips = self.flips, self.test_flip, self.test_label_flip
        return color_mnist(images, digits, seed, *flips, self.subset)


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
    subset: Share = Field(1.0, description="the share of the training and validation images to use")
    size: Literal[16, 32] = Field(16, description="pixels per side: 16, as in the authors' code, or 32")

    @field_validator("test_range")
    @classmethod
    def _lowest_first(cls, test_range: list[float]) -> list[float]:
        if test_range[0] > test_range[1]:
            raise ValueError("give the lowest angle first, as in [-90, 90]")
        return test_range

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation, from the data folder."""
        from fedilc.data.download import data_folder
        from fedilc.paper.pictures import read_cifar10, rotated_cifar10

        photographs = read_cifar10(data_folder())
        return rotated_cifar10(*photographs, seed, self.angles, self.test_range, self.subset, self.size)


class EicuSilos(Source):
    """The settings of all eICU sources: how a table of patients becomes silos and a test."""

    silos: int = Field(20, ge=1, description="the number of silos that train: those with the most patients")
    equal_sizes: bool = Field(True, description="cut each to the size of the smallest of them")
    oversample: bool = Field(True, description="repeat the rarer outcome until both are equally frequent")
    validation_share: float = Field(0.3, ge=0, lt=1)
    subset: Share = Field(1.0, description="the share of each training silo to use")

    @abstractmethod
    def patients(self, folder: Path) -> PatientTable:
        """Return the table of patients; `folder` is the experiment's folder."""

    def build(self, seed: int, folder: Path) -> Federation:
        """Return the federation of the patients."""
        from fedilc.paper.eicu import eicu_federation

        settings: dict[str, Any] = {name: getattr(self, name) for name in EicuSilos.model_fields}
        return eicu_federation(self.patients(folder), seed, settings.pop("source"), **settings)


class Eicu(EicuSilos):
    """The paper's eICU, from the table that `fedilc data eicu` makes of the user's own copy."""

    source: str = "eicu"
    file: str = Field("eicu.parquet", description="in the experiment's, the working or the data folder")

    def patients(self, folder: Path) -> PatientTable:
        """Return the prepared table."""
        from fedilc.data.download import data_folder
        from fedilc.paper.eicu import read_patients

        places = [folder / self.file, Path(self.file), data_folder() / self.file]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise DataError(
                f"{places[-1]} does not exist; make it from eICU's tables with `fedilc data eicu`, or "
                "name yours with `data.file=PATH`"
            )
        return read_patients(found)


class EicuDemo(EicuSilos):
    """eICU's open demo, with regions as silos."""

    source: str = "eicu-demo"
    silos: int = Field(3, ge=1, description="the number of silos that train: those with the most patients")
    equal_sizes: bool = Field(False, description="cut each to the size of the smallest of them")

    def patients(self, _folder: Path) -> PatientTable:
        """Return the demo's patients, from its raw tables in the data folder."""
        from fedilc.data.download import data_folder
        from fedilc.paper.eicu import read_demo

        return read_demo(data_folder() / "eicu-demo")


class EicuSynthetic(EicuSilos):
    """Synthetic patients in the shape of the paper's eICU."""

    source: str = "eicu-synthetic"

    def patients(self, _folder: Path) -> PatientTable:
        """Return the synthetic patients, which are always the same."""
        from fedilc.paper.eicu import synthetic_patients

        return synthetic_patients()
