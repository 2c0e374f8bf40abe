"""Photographs rotated by other angles in each silo: the paper's Rotated-CIFAR10, and the rotation itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedilc.data.silo import Federation, Silo
from fedilc.errors import DataError, require_extra
from fedilc.seeds import numpy_generator

Bytes = NDArray[np.uint8]

ANGLES = ((10.0, 25.0, 40.0), (60.0, 75.0, 90.0), (-10.0, -40.0, -90.0))


def rotate(images: Bytes, degrees: ArrayLike) -> Bytes:
    """Return images rotated counter-clockwise about their centres, by one angle or by one per image.

    Each pixel is the nearest pixel of the original image, or black if that lies outside of it: Pillow rotates
    an image of pixel numbers, from which the source of each pixel is read.

    Args:
        images: bytes of shape (images, channels, height, width).
        degrees: one angle, or one per image.

    >>> rotate(np.array([[[[1, 2], [3, 4]]]], np.uint8), 90)[0, 0]
    array([[2, 4], [1, 3]], dtype=uint8)
    """
    require_extra("benchmarks", "the rotation of images", "PIL")
    from PIL import Image

    number, channels, height, width = images.shape
    numbers = Image.fromarray(np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width))
    angles = np.atleast_1d(np.asarray(degrees, np.float64)).tolist()
    sources = np.stack([np.asarray(numbers.rotate(angle)).ravel() for angle in angles])
    with_black = np.pad(images.reshape(number, channels, height * width), ((0, 0), (0, 0), (1, 0)))
    return np.take_along_axis(with_black, sources[:, None], axis=2).reshape(images.shape)


def rotated_cifar10(
    train_images: Bytes,
    train_labels: Bytes,
    test_images: Bytes,
    test_labels: Bytes,
    seed: int = 0,
    angles: Sequence[Sequence[float]] = ANGLES,
    test_range: Sequence[float] = (-90.0, 90.0),
    subset: float = 1.0,
    size: int = 16,
) -> Federation:
    """Return the paper's Rotated-CIFAR10: silos of several rotations, and test images of random rotations.

    Images have `size` pixels per side: 16 keeps every second pixel before the rotation, as the authors' code
    does; 32 keeps all, as the paper's text says. The 50,000 training images are shuffled by `seed`: the first
    30,000 for training and the other 20,000 for validation, both dealt in turn to all rotations of all silos;
    the rotation of each validation example is its domain. Every test image is rotated by an angle of its own,
    uniform in `test_range`. `subset` is the share of the training and validation images that is used.
    """
    if len(train_images) != 50_000:
        raise DataError(f"Rotated-CIFAR10 needs CIFAR-10's 50,000 training images, not {len(train_images)}")
    step = 32 // size
    order = numpy_generator(seed, "rotated-cifar10", "shuffle").permutation(50_000)
    images, labels = train_images[:, :, ::step, ::step], train_labels.astype(np.int64)
    parts = order[: round(30_000 * subset)], order[30_000 : 30_000 + round(20_000 * subset)]
    dealt = _deal(parts, [len(rotations) for rotations in angles])
    silos = []
    for number, (rotations, (train, held_out)) in enumerate(zip(angles, dealt, strict=True), 1):
        x, x_val = (_rotated(images, rows, rotations) for rows in (train, held_out))
        y, y_val = (torch.from_numpy(labels[np.concatenate(rows)]) for rows in (train, held_out))
        domains = [f"{angle:g}°" for angle, rows in zip(rotations, held_out, strict=True) for _ in rows]
        silos.append(Silo(f"silo-{number}", x, y, x_val, y_val, domains=domains))
    lowest, highest = test_range
    spread = numpy_generator(seed, "rotated-cifar10", "test").uniform(lowest, highest, len(test_images))
    x_test = _pixels(rotate(test_images[:, :, ::step, ::step], spread))
    return Federation("rotated-cifar10", silos, x_test, test_labels.astype(np.int64), loss="multiclass")


def _deal(
    parts: Sequence[NDArray[np.int64]], sizes: Sequence[int]
) -> Iterator[list[list[NDArray[np.int64]]]]:
    """Deal the rows of each part in turn to all rotations, and yield those of each silo: part by rotation."""
    first = 0
    for size in sizes:
        yield [[part[place :: sum(sizes)] for place in range(first, first + size)] for part in parts]
        first += size


def _rotated(images: Bytes, rows: Sequence[NDArray[np.int64]], rotations: Sequence[float]) -> torch.Tensor:
    """Return the images of the rows of each rotation, rotated, one rotation after the other."""
    pairs = zip(rows, rotations, strict=True)
    return _pixels(np.concatenate([rotate(images[some], angle) for some, angle in pairs]))


def _pixels(images: Bytes) -> torch.Tensor:
    return torch.from_numpy(images.astype(np.float32) / 255)
