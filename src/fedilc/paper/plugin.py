"""The paper as a plug-in: its data sets, sources, network, experiments and campaigns. Needs no torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from fedilc.config import register_experiments, register_source
from fedilc.data.download import DATA_SETS, DataSet, Form
from fedilc.data.sources import ColorDigits, Share, Source
from fedilc.errors import DataError
from fedilc.models import registry
from fedilc.report import register_folder

if TYPE_CHECKING:
    from fedilc.data import Federation
    from fedilc.paper.eicu import PatientTable
    from fedilc.report.tables import TableData


_MNIST = {
    "train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_MNIST_RAW = {
    "train-images-idx3-ubyte": "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_CIFAR = {
    "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_CIFAR_ARCHIVE = ("cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530")
_EICU_DEMO = {
    "patient.csv.gz": "sha256:15e1eb52169828e3cfff3b67132a087298de4d0365bbb31bb294f6043bffd474",
    "medication.csv.gz": "sha256:480a251570a27932110452f66f248061f712c306663c274f78f90875648cb720",
    "hospital.csv.gz": "sha256:4ed356f9c4e7c8ce80e89241697e94b77f21c2f325cd6ad126794b1e92805ef4",
}
_EICU = ("patient", "medication", "hospital")

PAPERS = {
    "mnist": DataSet(
        summary="70,000 handwritten digits, for color-mnist",
        size="12 MB",
        forms=tuple(
            Form(folder, files)
            for folder in ("mnist", "", "MNIST/raw")  # the last is torchvision's
            for files in (_MNIST, _MNIST_RAW)
        ),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
    ),
    "cifar-10": DataSet(
        summary="60,000 small photographs of ten kinds, for rotated-cifar10",
        size="170 MB",
        forms=(Form("cifar-10-batches-bin", _CIFAR), Form("", _CIFAR), Form("", dict([_CIFAR_ARCHIVE]))),
        mirrors=(
            "https://www.cs.toronto.edu/~kriz/",
            "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
            "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/",
        ),
        archive=_CIFAR_ARCHIVE,
    ),
    "eicu-demo": DataSet(
        summary="the open demo of eICU 2.0.1: 2,520 stays in intensive care (ODbL)",
        size="1.6 MB",
        forms=(
            Form("eicu-demo", _EICU_DEMO),
            Form("eicu-demo", dict.fromkeys(f"{table}.csv" for table in _EICU)),
        ),
        mirrors=(
            "https://physionet.org/files/eicu-crd-demo/2.0.1/",
            "https://physionet-open.s3.amazonaws.com/eicu-crd-demo/2.0.1/",
        ),
    ),
    "eicu": DataSet(
        summary="the eICU database 2.0: 200,859 stays in intensive care; credentialed",
        size="-",
        forms=tuple(
            Form("eicu", dict.fromkeys(f"{table}.{suffix}" for table in _EICU))
            for suffix in ("csv.gz", "csv")
        ),
        steps=(
            "eicu cannot be fetched, because its publisher gives it to credentialed users only: become one "
            "at https://physionet.org/settings/credentialing/, sign the agreement at "
            "https://physionet.org/content/eicu-crd/2.0/, and put {files} from there into {place}"
        ),
    ),
}


class ColorMnist(ColorDigits):
    """The paper's Color-MNIST, from MNIST's own files."""

    source: str = "color-mnist"
    subset: Share = Field(1.0, description="the share of the training and validation images to use")

    def build(self, seed: int, _folder: Path) -> Federation:
        """Return the federation, from the data folder."""
        from fedilc.data.download import data_folder
        from fedilc.paper.image_benchmarks import color_mnist, read_mnist

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
        from fedilc.paper.image_benchmarks import read_cifar10, rotated_cifar10

        photographs = read_cifar10(data_folder())
        return rotated_cifar10(*photographs, seed, self.angles, self.test_range, self.subset, self.size)


class EicuSilos(Source):
    """The settings of all eICU sources: how a table of patients becomes silos and a test."""

    silos: int = Field(20, ge=1, description="the number of silos that train: those with the most patients")
    equal_sizes: bool = Field(True, description="cut each to the size of the smallest of them")
    oversample: bool = Field(True, description="repeat the rarer outcome until both are equally frequent")
    validation_share: float = Field(
        0.3, ge=0, lt=1, description="share of each silo that is held out for validation"
    )
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


for _name, _source in (
    ("color-mnist", ColorMnist),
    ("rotated-cifar10", RotatedCifar10),
    ("eicu", Eicu),
    ("eicu-demo", EicuDemo),
    ("eicu-synthetic", EicuSynthetic),
):
    register_source(_name, _source)
for _name, _data in PAPERS.items():
    DATA_SETS.register(_name, _data)
register_experiments(Path(__file__).with_name("experiments"))
registry.register(
    "eicu-mlp",
    "fedilc.paper.eicu:eicu_mlp",
    "1024-1024-512-1 for eICU; set hidden = [..] for other widths",
)


def _remake(folder: Path) -> tuple[Sequence[TableData], str]:
    """Write the tables and pictures of a campaign again from its numbers."""
    from fedilc.paper.campaign_folder import remake_campaign

    return remake_campaign(folder), "tables.md, tables.tex, tables/*.csv, figures/*.png"


register_folder("campaign.json", _remake)
