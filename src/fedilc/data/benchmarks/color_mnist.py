"""The paper's Color-MNIST: handwritten digits whose colour misleads, differently in every silo."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedilc.data.silo import Federation, Silo
from fedilc.errors import DataError
from fedilc.seeds import numpy_generator

Part = tuple[NDArray[np.float32], NDArray[np.int64]]
FLIPS = (0.15, 0.30, 0.45, 0.60, 0.75)


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
