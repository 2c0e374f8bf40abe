"""The data sets inside the package: coloured digits, four hospitals, and synthetic sites with shortcuts.

The digits are the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI
Machine Learning Repository 1998, doi:10.24432/C50P49, CC BY 4.0), 1,797 images of 8 by 8 pixels, the same as
scikit-learn's `load_digits`. The heart disease data hold every patient of the published files; ATTRIBUTION.md
beside them says who collected them, and their licence (CC BY 4.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedilc.data.silo import Federation, Silo
from fedilc.data.silo_store import SiloStore
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import DataError
from fedilc.seeds import numpy_generator

if TYPE_CHECKING:
    from fedilc.data.tables.silo_tables import SiloTables

Part = tuple[NDArray[np.float32], NDArray[np.int64]]
FLIPS = (0.15, 0.30, 0.45, 0.60, 0.75)
_FILES = Path(__file__).with_name("embedded_files")
_DIGITS = _FILES / "digits.csv.gz"
_TEST = 400  # the digits of `many_silos` that no silo draws from
_HOSPITALS = _FILES / "heart-disease"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEART_DISEASE_COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
HEART_DISEASE_SETTINGS = TableSettings(
    label="num>0",
    categorical=("cp", "restecg", "slope", "thal"),
    missing=("chol=0", "trestbps=0"),
    min_category=1,  # the data are published, so that no value needs to be hidden
)
_TEST_ROWS = 4000  # of `site_shortcuts`


def color_digits(
    seed: int = 0,
    flips: Sequence[float] = FLIPS,
    test_flip: float = 0.90,
    test_label_flip: float = 0.15,
) -> Federation:
    """Return small handwritten digits, whose colour misleads, differently in every silo; needs no download.

    1,797 images of 8 by 8 pixels are shuffled by `seed`: 1,000 for training and 397 for validation, dealt
    in turn to the silos, and 400 for the out-of-distribution test.
    """
    name = "color-digits"
    return coloured_federation(name, seed, _digit_parts(seed, name), flips, test_flip, test_label_flip)


def color_digits_shift(
    seed: int = 0,
    flips: Sequence[float] = (0.05, 0.10, 0.20, 0.30),
    test_flip: float = 0.90,
    label_flip: float = 0.15,
    copies: int = 8,
) -> Federation:
    """Return the embedded digits with a colour that helps in every silo and misleads at the new site.

    The images are split as in `color_digits`. Each then occurs `copies` times: as it is, and turned by up to
    15 degrees and shifted by up to a pixel. All copies of an image are in the same part of the same silo, and
    each has its own colour and its own label, which is wrong with probability `label_flip`.
    """
    name, parts = "color-digits-shift", _digit_parts(seed, "color-digits")
    return coloured_federation(name, seed, parts, flips, test_flip, label_flip, label_flip, copies)


def many_silos(seed: int, silos: int = 10_000, examples: int = 20, validation: int = 5) -> SiloStore:
    """Return silos of a few coloured digits each, whose colours mislead with different probabilities.

    A silo draws its examples, with replacement, from 1,397 digits, and its colour flip from 0.1 to 0.8;
    the other 400 digits, with a flip of 0.9, are the out-of-distribution test. Nothing stays in memory: a
    silo is made from its name and the seed whenever it is opened.
    """
    images, digits = read_digits()
    order = numpy_generator(0, "many-silos", "order").permutation(len(digits))
    images, digits = images[order], digits[order]
    width = len(str(silos - 1))
    names = [f"silo-{number:0{width}d}" for number in range(silos)]

    def open_(name: str) -> Silo:
        random = numpy_generator(seed, "many-silos", name)
        flip = random.uniform(0.1, 0.8)
        rows = random.integers(_TEST, len(digits), examples + validation)
        x, y = colour(images[rows], digits[rows], flip, random)
        return Silo(name, x[:examples], y[:examples], x[examples:], y[examples:])

    random = numpy_generator(seed, "many-silos", "test")
    x_test, y_test = colour(images[:_TEST], digits[:_TEST], 0.9, random, 0.15)
    facts = {name: {"examples": examples} for name in names}
    sample = open_(names[0]).x[:2]
    return SiloStore("many-silos", facts, sample, "binary", x_test, y_test, make=open_, outputs=1)


def heart_disease(folder: Path) -> SiloTables:
    """Return the four hospitals' tables, from `folder` if it exists, otherwise from the package."""
    import polars as pl  # here, since runs over pictures start without it

    from fedilc.data.tables.silo_tables import tables_of

    place, ending = (folder, "data") if folder.is_dir() else (_HOSPITALS, "data.gz")
    otherwise = f"correct it, or remove {folder} to use the files of the package"
    frames = {}
    for hospital in HOSPITALS:
        path = place / f"processed.{hospital}.{ending}"
        if not path.is_file():
            raise DataError(f"{path} does not exist; {otherwise}")
        frame = pl.read_csv(path, has_header=False, infer_schema=False, glob=False)
        if frame.width != len(HEART_DISEASE_COLUMNS):
            raise DataError(
                f"{path} has {frame.width} columns instead of {len(HEART_DISEASE_COLUMNS)}; {otherwise}"
            )
        frames[hospital] = frame.rename(dict(zip(frame.columns, HEART_DISEASE_COLUMNS, strict=True)))
    return tables_of(frames, HEART_DISEASE_SETTINGS)


def site_shortcuts(
    seed: int = 0,
    silos: int = 10,
    examples: int = 300,
    validation: int = 100,
    features: int = 8,
    effect: float = 0.25,
    markers: int = 6,
    marker_effect: float = 1.5,
) -> Federation:
    """Return silos whose labels can be told from common features, or more easily from a silo's own markers.

    All columns are normal with variance 1. The mean of a common feature is `effect` for the label 1 and minus
    `effect` for the label 0, in every silo and in the test. Each silo has `markers` further columns, whose
    means differ by `marker_effect` in the same way in that silo; in all other silos and in the test they are
    noise. Both labels are equally frequent.

    >>> federation = site_shortcuts(silos=3)
    >>> federation.inputs, [len(silo) for silo in federation.silos]
    ((26,), [300, 300, 300])
    """
    name, width = "site-shortcuts", features + silos * markers

    def site(rows: int, *where: str | int) -> tuple[Tensor, Tensor]:
        random = numpy_generator(seed, name, *where)
        y = random.integers(0, 2, rows)
        means = np.zeros(width)
        means[:features] = effect
        if isinstance(where[0], int):
            first = features + where[0] * markers
            means[first : first + markers] = marker_effect
        x = random.normal(size=(rows, width)) + np.outer(2 * y - 1, means)
        return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.float32))

    digits = len(str(silos))
    members = [
        Silo(f"site-{n + 1:0{digits}d}", *site(examples, n, "train"), *site(validation, n, "validation"))
        for n in range(silos)
    ]
    return Federation(name, members, *site(_TEST_ROWS, "test"), loss="binary")


@cache
def read_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the images, with values from 0 to 1, and the digit of each.

    >>> images, digits = read_digits()
    >>> images.shape, digits[:3].tolist()
    ((1797, 8, 8), [0, 1, 2])
    """
    rows = np.loadtxt(_DIGITS, delimiter=",", dtype=np.int64)
    images = (rows[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32)
    return images, rows[:, -1]


def _digit_parts(seed: int, name: str) -> list[Part]:
    """Return the embedded images and digits for training, validation and test."""
    images, digits = read_digits()
    order = numpy_generator(seed, name, "shuffle").permutation(len(digits))
    images, digits = images[order], digits[order]
    return [(images[part], digits[part]) for part in (slice(1000), slice(1000, 1397), slice(1397, None))]


def colour(
    images: NDArray[np.float32],
    digits: NDArray[np.int64],
    flip: float,
    random: np.random.Generator,
    label_flip: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return images with two colour channels, and their labels; the colour misleads with probability `flip`.

    The label is 1 for digits below five, and is flipped with probability `label_flip`. The colour is the
    label, flipped with probability `flip`. Channel 1 - colour is set to zero, so that the colour is the
    channel that shows the digit.
    """
    labels = digits < 5
    labels = labels ^ (random.random(len(labels)) < label_flip)
    colours = labels ^ (random.random(len(labels)) < flip)
    channels = np.stack([images, images], axis=1)
    channels[np.arange(len(images)), 1 - colours.astype(np.int64)] = 0
    return torch.from_numpy(channels), torch.from_numpy(labels.astype(np.float32))


def coloured_federation(
    name: str,
    seed: int,
    parts: Sequence[Part],
    flips: Sequence[float],
    test_flip: float,
    test_label_flip: float,
    label_flip: float = 0.0,
    copies: int = 1,
) -> Federation:
    """Return the federation of (training, validation, test): the first two are dealt in turn to the silos."""
    names = [f"flip-{flip:.2f}" for flip in flips]
    if len(set(names)) < len(names):
        names = [f"silo-{number}-{label}" for number, label in enumerate(names, 1)]
    train, validation, test = parts

    def copied(part: Part, *where: str | int) -> Part:
        """Return images and digits of a part, and after them moved copies."""
        random = numpy_generator(seed, name, "copies", *where)
        images = [part[0], *(moved(part[0], random) for _ in range(copies - 1))]
        return np.concatenate(images), np.tile(part[1], copies)

    silos = []
    for number, flip in enumerate(flips):
        random = numpy_generator(seed, name, number, "colour")
        dealt = slice(number, None, len(flips))
        mine = [copied((p[0][dealt], p[1][dealt]), number, k) for k, p in enumerate((train, validation))]
        (x, y), (x_val, y_val) = (colour(*part, flip, random, label_flip) for part in mine)
        silos.append(Silo(names[number], x, y, x_val, y_val))
    random = numpy_generator(seed, name, "test", "colour")
    x_test, y_test = colour(*copied(test, "test"), test_flip, random, test_label_flip)
    return Federation(name, silos, x_test, y_test, loss="binary")


def moved(images: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
    """Return each image turned by up to 15 degrees and shifted by up to a pixel, linearly interpolated."""
    angles = np.radians(random.uniform(-15, 15, len(images)))
    height, width = images.shape[1:]
    turns = np.zeros((len(images), 2, 3))
    turns[:, 0, 0] = turns[:, 1, 1] = np.cos(angles)
    turns[:, 1, 0] = np.sin(angles)
    turns[:, 0, 1] = -turns[:, 1, 0]
    turns[:, :, 2] = random.uniform(-1, 1, (len(images), 2)) * (2 / width, 2 / height)
    places = functional.affine_grid(
        torch.from_numpy(turns).float(), [len(images), 1, height, width], align_corners=False
    )
    found = functional.grid_sample(torch.from_numpy(images).unsqueeze(1), places, align_corners=False)
    return found[:, 0].numpy()
