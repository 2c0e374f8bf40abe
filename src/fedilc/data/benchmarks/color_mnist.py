"""The paper's Color-MNIST: handwritten digits whose colour misleads, differently in every silo."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedilc.data.benchmarks.color_digits import FLIPS, coloured_federation
from fedilc.data.silo import Federation
from fedilc.errors import DataError
from fedilc.seeds import numpy_generator


def color_mnist(
    images: NDArray[np.uint8],
    digits: NDArray[np.uint8],
    seed: int = 0,
    flips: Sequence[float] = FLIPS,
    test_flip: float = 0.90,
    test_label_flip: float = 0.15,
    subset: float = 1.0,
) -> Federation:
    """Return the paper's Color-MNIST, from the 60,000 MNIST training images.

    The first 50,000 are shuffled by `seed`: 40,000 for training and 10,000 for validation, dealt in turn to
    the silos; the last 10,000 are the out-of-distribution test. Images are subsampled to 14 by 14 pixels.
    `subset` is the share of the training and validation images that is used.
    """
    if len(images) < 60_000:
        raise DataError(f"Color-MNIST needs the 60,000 training images of MNIST, not {len(images)}")
    order = numpy_generator(seed, "color-mnist", "shuffle").permutation(50_000)
    small = images[:, ::2, ::2].astype(np.float32) / np.float32(255)
    train, validation = order[: round(40_000 * subset)], order[40_000 : 40_000 + round(10_000 * subset)]
    chosen = (train, validation, slice(50_000, 60_000))
    parts = [(small[part], digits[part].astype(np.int64)) for part in chosen]
    return coloured_federation("color-mnist", seed, parts, flips, test_flip, test_label_flip)
