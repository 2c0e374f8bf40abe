"""The data sets inside the package as the section [data] of an experiment. This file needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from fedilc.config.section import Source
from fedilc.config.user_sources import TableSource

if TYPE_CHECKING:
    from fedilc.data import Federation
    from fedilc.data.silo_store import SiloStore
    from fedilc.data.tables.silo_tables import SiloTables

Probability = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]


class ColorDigits(Source):
    """The small digits inside the package, with a colour that misleads, differently in every silo."""

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
