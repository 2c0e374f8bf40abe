"""Reading MNIST and CIFAR-10 from the files their publishers give out."""

from __future__ import annotations

import gzip
import math
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedilc.data.catalogue import find_data_set
from fedilc.data.pickled import read_pickled
from fedilc.errors import DataError

Bytes = NDArray[np.uint8]

_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
_BATCH = 10_000
_PIXELS = 3 * 32 * 32
_LARGEST = 64 << 20  # beyond any of their files, so that a wrong one cannot fill the memory


def read_idx(path: Path) -> Bytes:
    """An array from an idx file, raw or gzipped: two zeros, the type, the rank, the sizes, the bytes."""
    with _damage(path, "mnist"), path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    with _damage(path, "mnist"), gzip.open(path) if zipped else path.open("rb") as file:
        content = file.read(_LARGEST)
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{path} is not an idx file of bytes; {_again('mnist')}")
    start = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:start].ljust(start - 4, b"\0"), ">u4"))
    if len(content) != start + math.prod(shape):
        raise DataError(
            f"{path} is damaged: it does not hold as many values as the {shape} it begins with; "
            f"{_again('mnist')}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_mnist(folder: Path) -> tuple[Bytes, Bytes]:
    """The 60,000 training images of MNIST and their digits.

    The idx files may be gzipped or raw, in `folder`, in its mnist/, or where torchvision puts them.
    """
    form = find_data_set("mnist").found(folder)
    paths = [folder / form.folder / name for name in form.files if name.startswith("train-")]
    images, digits = (read_idx(path) for path in _all_there(paths, "mnist", folder))
    if images.shape != (60_000, 28, 28) or digits.shape != (60_000,) or digits.max() > 9:
        raise DataError(
            f"{paths[0].parent} holds images of shape {images.shape} and labels of shape {digits.shape} up "
            f"to {digits.max(initial=0)}, not MNIST's 60,000 digits of 28 by 28; {_again('mnist')}"
        )
    return images, digits


def read_cifar10(folder: Path) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """CIFAR-10: 50,000 training images of shape (3, 32, 32), their classes, 10,000 test images, theirs.

    `folder` may be the folder of the batches, binary or Python, or hold it, or hold the archive of
    either, or be that archive.
    """
    images = np.empty((len(_BATCHES) * _BATCH, _PIXELS), np.uint8)
    classes = np.empty(len(images), np.uint8)
    missing = dict.fromkeys(_BATCHES)
    for path, content in _batches(folder):
        name = Path(path).name.removesuffix(".bin")
        part = slice(_BATCH * _BATCHES.index(name), _BATCH * (1 + _BATCHES.index(name)))
        read = _read_binary if path.endswith(".bin") else _read_python
        images[part], classes[part] = read(content, path)
        if classes[part].max() > 9:
            raise DataError(f"{path} is damaged: it has a class beyond CIFAR-10's ten; {_again('cifar-10')}")
        missing.pop(name, None)
    if missing:
        raise DataError(f"{folder} lacks {', '.join(missing)} of CIFAR-10; {_again('cifar-10')}")
    square = images.reshape(-1, 3, 32, 32)
    train, test = slice(5 * _BATCH), slice(5 * _BATCH, None)
    return square[train], classes[train], square[test], classes[test]


def _batches(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The batches of the most complete form, one after the other, with the paths to name them by."""
    if folder.is_file():
        yield from _members(folder)
        return
    form = find_data_set("cifar-10").found(folder)
    paths = [folder / form.folder / name for name in form.files]
    for path in _all_there(paths, "cifar-10", folder):
        if path.name.endswith(".tar.gz"):
            yield from _members(path)
            continue
        with _damage(path, "cifar-10"), path.open("rb") as file:
            content = file.read(_LARGEST)
        yield str(path), content


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    with _damage(archive, "cifar-10"), gzip.open(archive) as unpacked:
        with tarfile.open(fileobj=unpacked, mode="r|") as members:
            for member in members:
                name = Path(member.name).name
                file = members.extractfile(member) if name.removesuffix(".bin") in _BATCHES else None
                if file is not None:
                    yield f"{archive}/{name}", file.read(_LARGEST)
        while unpacked.read(_LARGEST):  # to the end, where gzip has its checksum
            pass


def _read_binary(content: bytes, path: str) -> tuple[Bytes, Bytes]:
    """A batch as rows of the class and the pixels."""
    if len(content) != _BATCH * (1 + _PIXELS):
        raise DataError(
            f"{path} is damaged: it has {len(content):,} bytes, not {_BATCH * (1 + _PIXELS):,}; "
            f"{_again('cifar-10')}"
        )
    rows = np.frombuffer(content, np.uint8).reshape(_BATCH, 1 + _PIXELS)
    return rows[:, 1:], rows[:, 0]


def _read_python(content: bytes, path: str) -> tuple[Bytes, Bytes]:
    batch = read_pickled(content, path)
    pixels, classes = batch.get("data"), batch.get("labels")
    if not (
        isinstance(pixels, np.ndarray)
        and pixels.shape == (_BATCH, _PIXELS)
        and isinstance(classes, list)
        and len(classes) == _BATCH
        and all(isinstance(each, int) and 0 <= each <= 9 for each in classes)
    ):
        raise DataError(
            f"{path} is damaged: it does not hold {_BATCH:,} images and their classes; {_again('cifar-10')}"
        )
    return pixels, np.array(classes, np.uint8)


def _all_there(paths: list[Path], data_set: str, folder: Path) -> list[Path]:
    missing = [path for path in paths if not path.is_file()]
    if len(missing) == len(paths):
        raise DataError(
            f"{data_set} is not in {folder}; `fedilc data fetch {data_set}` gets it, or name the folder that "
            "has it with --data-dir or FEDILC_DATA"
        )
    if missing:
        raise DataError(f"{missing[0]} is missing; {_again(data_set)}")
    return paths


@contextmanager
def _damage(path: Path, data_set: str) -> Iterator[None]:
    """Say in one sentence that a file cannot be read, whatever its reader says."""
    try:
        yield
    except (EOFError, zlib.error, tarfile.TarError, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged: it cannot be unpacked; {_again(data_set)}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _again(data_set: str) -> str:
    return f"`fedilc data fetch {data_set}` gets the published files"
