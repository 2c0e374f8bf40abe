"""Read MNIST and CIFAR-10 from the files that their publishers distribute."""

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

from fedilc.data.data_sets import find_data_set
from fedilc.errors import DataError

Bytes = NDArray[np.uint8]

_BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_PYTHON = ("cifar-10-batches-py", "data_batch_1", "cifar-10-python.tar.gz")
_BATCH = 10_000
_PIXELS = 3 * 32 * 32
_MAX_BYTES = 64 << 20  # more than any of their files has, so that a wrong file cannot fill the memory


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
