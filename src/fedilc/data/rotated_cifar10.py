"""Photographs rotated by other angles in each silo: the paper's Rotated-CIFAR10, and the rotation itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedilc.data.silo import Federation, Silo
from fedilc.errors import ConfigError, DataError
from fedilc.seeds import numpy_generator

Bytes = NDArray[np.uint8]

ANGLES = ((10.0, 25.0, 40.0), (60.0, 75.0, 90.0), (-10.0, -40.0, -90.0))
_CHUNK = 512  # images at a time, so that their index maps stay in the processor's cache


def rotate(images: Bytes, degrees: ArrayLike) -> Bytes:
    """Return images rotated counter-clockwise about their centres, by one angle or by one per image.

    Each pixel is the nearest pixel of the original image, or black if that lies outside of it. The result
    has the same bits as Pillow's `Image.rotate`, which steps through the image in fixed-point arithmetic: a
    rotation with rounded coordinates would differ at the borders between pixels.

    Args:
        images: bytes of shape (images, channels, height, width).
        degrees: one angle, or one per image.

    >>> rotate(np.array([[[[1, 2], [3, 4]]]], np.uint8), 90)[0, 0]
    array([[2, 4], [1, 3]], dtype=uint8)
    """
    if images.ndim != 4 or images.dtype != np.uint8:
        raise DataError(
            f"rotate takes bytes of shape (images, channels, height, width), not {images.dtype} of "
            f"shape {images.shape}"
        )
    number, channels, height, width = images.shape
    angles = np.asarray(degrees, np.float64)
    if angles.shape not in ((), (number,)) or not np.isfinite(angles).all():
        raise DataError(f"rotate takes one finite angle, or one for each of the {number} images")
    steps = np.array([_steps(angle, height, width) for angle in np.atleast_1d(angles).tolist()], np.int64)
    rotated = np.empty_like(images)
    for start in range(0, number, _CHUNK):
        part = slice(start, start + _CHUNK)
        source, inside = _sources(steps[part] if angles.ndim else steps, height, width)
        pixels = images[part].reshape(-1, channels, height * width)
        found = np.take_along_axis(pixels, source[:, None], axis=2) * inside[:, None]
        rotated[part] = found.reshape(-1, channels, height, width)
    return rotated


def _steps(degrees: float, height: int, width: int) -> tuple[int, ...]:
    """Return the affine map from a pixel to its source: matrix and offset, in units of 1/65536 pixel.

    The order is (x to x, y to x, offset of x, x to y, y to y, offset of y). Cosine and sine are rounded to
    15 digits, so that quarter turns are exact.
    """
    turn = -math.radians(degrees % 360.0)
    cosine, sine, minus_sine = (
        round(value, 15) for value in (math.cos(turn), math.sin(turn), -math.sin(turn))
    )
    x, y = width / 2, height / 2
    at_x = cosine * -x + sine * -y + x
    at_y = minus_sine * -x + cosine * -y + y
    middle_x, middle_y = at_x + cosine * 0.5 + sine * 0.5, at_y + minus_sine * 0.5 + cosine * 0.5
    values = (cosine, sine, middle_x, minus_sine, cosine, middle_y)
    return tuple(math.floor(value * 65536.0 + 0.5) for value in values)


def _sources(
    steps: NDArray[np.int64], height: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return, per image and pixel, the index of its source, and whether that is inside the image."""
    x_to_x, y_to_x, at_x, x_to_y, y_to_y, at_y = steps.T[:, :, None, None]
    row, column = np.arange(height)[:, None], np.arange(width)
    x = (at_x + y_to_x * row + x_to_x * column) >> 16
    y = (at_y + y_to_y * row + x_to_y * column) >> 16
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    source = np.where(inside, y * width + x, 0)
    return source.reshape(len(steps), -1), inside.reshape(len(steps), -1)


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
    _check_angles(angles, test_range)
    if size not in (16, 32):
        raise ConfigError(
            f"size={size} is not valid; give 16 (every second pixel of an image) or 32 (all pixels)"
        )
    step = 32 // size
    order = numpy_generator(seed, "rotated-cifar10", "shuffle").permutation(50_000)
    images, labels = train_images[:, :, ::step, ::step], train_labels.astype(np.int64)
    parts = order[: round(30_000 * subset)], order[30_000 : 30_000 + round(20_000 * subset)]
    dealt = _deal(parts, [len(rotations) for rotations in angles])
    silos = []
    for number, (rotations, (train, held_out)) in enumerate(zip(angles, dealt, strict=True), 1):
        x, x_val = (_rotate_hands(images, hands, rotations) for hands in (train, held_out))
        y, y_val = (torch.from_numpy(labels[np.concatenate(hands)]) for hands in (train, held_out))
        domains = [f"{angle:g}°" for angle, hand in zip(rotations, held_out, strict=True) for _ in hand]
        silos.append(Silo(f"silo-{number}", x, y, x_val, y_val, domains=domains))
    lowest, highest = test_range
    spread = numpy_generator(seed, "rotated-cifar10", "test").uniform(lowest, highest, len(test_images))
    x_test = _pixels(rotate(test_images[:, :, ::step, ::step], spread))
    return Federation("rotated-cifar10", silos, x_test, test_labels.astype(np.int64), loss="multiclass")


def _check_angles(angles: Sequence[Sequence[float]], test_range: Sequence[float]) -> None:
    if not angles or not all(angles):
        raise ConfigError(
            "angles is empty, or a silo in it is; give at least one silo, and each silo at least one angle"
        )
    if len(test_range) != 2 or not test_range[0] <= test_range[1]:
        raise ConfigError(
            f"test_range={list(test_range)} is not a lowest and a highest angle; give them as in [-90, 90]"
        )


def _deal(
    parts: Sequence[NDArray[np.int64]], sizes: Sequence[int]
) -> Iterator[list[list[NDArray[np.int64]]]]:
    """Deal each part in turn to all rotations, like cards, and yield the hands of each silo, part by part."""
    first = 0
    for size in sizes:
        yield [[part[hand :: sum(sizes)] for hand in range(first, first + size)] for part in parts]
        first += size


def _rotate_hands(
    images: Bytes, hands: Sequence[NDArray[np.int64]], rotations: Sequence[float]
) -> torch.Tensor:
    """Return the images of all hands, each hand with its own rotation, one after the other."""
    pairs = zip(hands, rotations, strict=True)
    return _pixels(np.concatenate([rotate(images[hand], angle) for hand, angle in pairs]))


def _pixels(images: Bytes) -> torch.Tensor:
    return torch.from_numpy(images.astype(np.float32) / 255)
