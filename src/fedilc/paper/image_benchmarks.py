"""The paper's Color-MNIST and Rotated-CIFAR10, and readers for the published files of MNIST and CIFAR-10."""

from __future__ import annotations

import gzip
import math
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedilc.data.download import find_data_set
from fedilc.data.embedded_data import FLIPS, coloured_federation
from fedilc.data.silo import Federation, Silo
from fedilc.errors import DataError, require_extra
from fedilc.seeds import numpy_generator

Bytes = NDArray[np.uint8]
_BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_PYTHON = ("cifar-10-batches-py", "data_batch_1", "cifar-10-python.tar.gz")
_BATCH = 10_000
_PIXELS = 3 * 32 * 32
_MAX_BYTES = 64 << 20  # more than any of their files has, so that a wrong file cannot fill the memory
ANGLES = ((10.0, 25.0, 40.0), (60.0, 75.0, 90.0), (-10.0, -40.0, -90.0))


def color_mnist(
    images: Bytes,
    digits: Bytes,
    seed: int = 0,
    flips: Sequence[float] = FLIPS,
    test_flip: float = 0.90,
    test_label_flip: float = 0.15,
    subset: float = 1.0,
) -> Federation:
    """Return the paper's Color-MNIST, from the 60,000 MNIST training images.

    The first 50,000 are shuffled by `seed`: 40,000 for training and 10,000 for validation, dealt in turn to
    the silos; the last 10,000 are the out-of-distribution test. Bytes are subsampled to 14 by 14 pixels.
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

    Bytes have `size` pixels per side: 16 keeps every second pixel before the rotation, as the authors' code
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


def read_idx(path: Path) -> Bytes:
    """Return the array of an idx file, raw or gzipped: two zeros, type, rank, sizes, bytes."""
    with _reading(path, "mnist"), path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    with _reading(path, "mnist"), gzip.open(path) if zipped else path.open("rb") as file:
        content = file.read(_MAX_BYTES)
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{path} is not an idx file of bytes; {_fetch_again('mnist')}")
    start = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:start].ljust(start - 4, b"\0"), ">u4"))
    if len(content) != start + math.prod(shape):
        raise DataError(
            f"{path} is damaged: it does not hold as many values as its header says, {shape}; "
            f"{_fetch_again('mnist')}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_mnist(folder: Path) -> tuple[Bytes, Bytes]:
    """Return the 60,000 training images of MNIST and their digits.

    The idx files may be gzipped or raw, in `folder`, in its mnist/, or where torchvision puts them.
    """
    form = find_data_set("mnist").found(folder)
    paths = [folder / form.folder / name for name in form.files if name.startswith("train-")]
    images, digits = (read_idx(path) for path in _require_all(paths, "mnist", folder))
    if images.shape != (60_000, 28, 28) or digits.shape != (60_000,) or digits.max() > 9:
        raise DataError(
            f"{paths[0].parent} holds images of shape {images.shape} and labels of shape {digits.shape} up "
            f"to {digits.max(initial=0)}, not MNIST's 60,000 digits of 28 by 28; {_fetch_again('mnist')}"
        )
    return images, digits


def read_cifar10(folder: Path) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Return CIFAR-10's 50,000 training images of shape (3, 32, 32) and classes, and its 10,000 test ones.

    `folder` may be the folder of the binary batches, or hold that folder or the archive of it.
    """
    images = np.empty((len(_BATCHES) * _BATCH, _PIXELS), np.uint8)
    classes = np.empty(len(images), np.uint8)
    missing = dict.fromkeys(_BATCHES)
    for path, content in _batches(folder):
        if len(content) != _BATCH * (1 + _PIXELS):
            raise DataError(
                f"{path} is damaged: it has {len(content):,} bytes, not {_BATCH * (1 + _PIXELS):,}; "
                f"{_fetch_again('cifar-10')}"
            )
        number = _BATCHES.index(path.name)
        part = slice(_BATCH * number, _BATCH * (1 + number))
        rows = np.frombuffer(content, np.uint8).reshape(_BATCH, 1 + _PIXELS)
        images[part], classes[part] = rows[:, 1:], rows[:, 0]
        if classes[part].max() > 9:
            raise DataError(
                f"{path} is damaged: it has a class beyond CIFAR-10's ten; {_fetch_again('cifar-10')}"
            )
        missing.pop(path.name, None)
    if missing:
        raise DataError(f"{folder} lacks {', '.join(missing)} of CIFAR-10; {_fetch_again('cifar-10')}")
    square = images.reshape(-1, 3, 32, 32)
    train, test = slice(5 * _BATCH), slice(5 * _BATCH, None)
    return square[train], classes[train], square[test], classes[test]


def _batches(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the batches of the most complete form, each with its path."""
    form = find_data_set("cifar-10").found(folder)
    python = [path for path in (folder, *(folder / name for name in _PYTHON)) if path.name in _PYTHON]
    if not form.share(folder) and any(path.exists() for path in python):
        raise DataError(
            f"{folder} holds the Python batches of CIFAR-10; fedilc reads the binary version: "
            "`fedilc data fetch cifar-10`"
        )
    for path in _require_all([folder / form.folder / name for name in form.files], "cifar-10", folder):
        if path.name.endswith(".tar.gz"):
            yield from _archive_members(path)
            continue
        with _reading(path, "cifar-10"), path.open("rb") as file:
            content = file.read(_MAX_BYTES)
        yield path, content


def _archive_members(archive: Path) -> Iterator[tuple[Path, bytes]]:
    with _reading(archive, "cifar-10"), gzip.open(archive) as unpacked:
        with tarfile.open(fileobj=unpacked, mode="r|") as members:
            for member in members:
                name = Path(member.name).name
                file = members.extractfile(member) if name in _BATCHES else None
                if file is not None:
                    yield archive / name, file.read(_MAX_BYTES)
        while unpacked.read(_MAX_BYTES):  # to the end, because gzip's checksum is there
            pass


def _require_all(paths: list[Path], data_set: str, folder: Path) -> list[Path]:
    missing = [path for path in paths if not path.is_file()]
    if len(missing) == len(paths):
        raise DataError(
            f"{data_set} is not in {folder}; `fedilc data fetch {data_set}` downloads it, or name the folder "
            "that has it with `data_dir` or FEDILC_DATA"
        )
    if missing:
        raise DataError(f"{missing[0]} is missing; {_fetch_again(data_set)}")
    return paths


@contextmanager
def _reading(path: Path, data_set: str) -> Iterator[None]:
    """Raise one sentence if a file cannot be read, whatever its reader raises."""
    try:
        yield
    except (EOFError, zlib.error, tarfile.TarError, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged: it cannot be unpacked; {_fetch_again(data_set)}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _fetch_again(data_set: str) -> str:
    return f"`fedilc data fetch {data_set}` downloads the published files"
