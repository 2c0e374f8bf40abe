"""Ten thousand small silos of the digits in the package, each made when it is opened."""

from __future__ import annotations

from fedilc.data.benchmarks.color_mnist import colour
from fedilc.data.benchmarks.digits import read_digits
from fedilc.data.silo import Silo
from fedilc.data.silo_store import SiloStore
from fedilc.seeds import numpy_generator

TEST = 400


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
        rows = random.integers(TEST, len(digits), examples + validation)
        x, y = colour(images[rows], digits[rows], flip, random)
        return Silo(name, x[:examples], y[:examples], x[examples:], y[examples:])

    random = numpy_generator(seed, "many-silos", "test")
    x_test, y_test = colour(images[:TEST], digits[:TEST], 0.9, random, 0.15)
    sizes = dict.fromkeys(names, examples)
    sample = open_(names[0]).x[:2]
    return SiloStore("many-silos", sizes, open_, sample, 1, "binary", x_test, y_test)
