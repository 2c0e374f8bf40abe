"""Coloured federations of the small handwritten digits inside the package: 1,797 images of 8 by 8 pixels.

The digits are the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI
Machine Learning Repository 1998, doi:10.24432/C50P49, CC BY 4.0), and the same as scikit-learn's
`load_digits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedilc.data.benchmarks.color_mnist import FLIPS, Part, colour, coloured_federation
from fedilc.data.silo import Federation, Silo
from fedilc.data.silo_store import SiloStore
from fedilc.seeds import numpy_generator

_FILE = Path(__file__).with_name("digits.csv.gz")
_TEST = 400


@cache
def read_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the images, with values from 0 to 1, and the digit of each.

    >>> images, digits = read_digits()
    >>> images.shape, digits[:3].tolist()
    ((1797, 8, 8), [0, 1, 2])
    """
    rows = np.loadtxt(_FILE, delimiter=",", dtype=np.int64)
    images = (rows[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32)
    return images, rows[:, -1]


def color_digits(
    seed: int = 0,
    flips: Sequence[float] = FLIPS,
    test_flip: float = 0.90,
    test_label_flip: float = 0.15,
) -> Federation:
    """Return small handwritten digits, coloured like Color-MNIST; needs no download.

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
    """Return the embedded digits, with a colour that helps in every silo and misleads at the new site.

    The images are split as those of `color_digits`. Each is then there `copies` times: as it is, and turned
    by up to 15 degrees and shifted by up to a pixel. All copies of an image are in the same part of the same
    silo, and each has its own colour and its own label, which is wrong with probability `label_flip`.
    """
    name, parts = "color-digits-shift", _digit_parts(seed, "color-digits")
    return coloured_federation(name, seed, parts, flips, test_flip, label_flip, label_flip, copies)


def _digit_parts(seed: int, name: str) -> list[Part]:
    """Return the embedded images and digits for training, validation and test."""
    images, digits = read_digits()
    order = numpy_generator(seed, name, "shuffle").permutation(len(digits))
    images, digits = images[order], digits[order]
    return [(images[part], digits[part]) for part in (slice(1000), slice(1000, 1397), slice(1397, None))]


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
