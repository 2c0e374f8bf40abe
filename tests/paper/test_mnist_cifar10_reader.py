"""Reading MNIST and CIFAR-10: every form they come in, and one sentence for each that cannot be read."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from real_data import real_data

from fedilc.errors import DataError
from fedilc.paper.image_benchmarks import read_cifar10, read_idx, read_mnist

AGAIN = "; `fedilc data fetch {}` downloads the published files$"


def idx(values: NDArray[np.uint8]) -> bytes:
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return header + values.tobytes()


IMAGES = (np.arange(60_000 * 784, dtype=np.uint32) % 251).astype(np.uint8).reshape(-1, 28, 28)
DIGITS = (np.arange(60_000) % 10).astype(np.uint8)


def lay_mnist(folder: Path, images: NDArray[np.uint8] = IMAGES, digits: NDArray[np.uint8] = DIGITS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(digits))
    return folder


@pytest.mark.parametrize("zipped", [True, False], ids=["gz", "raw"])
@pytest.mark.parametrize("place", [".", "mnist", "MNIST/raw"])
def test_mnist_is_read_zipped_or_raw_wherever_it_may_be(tmp_path: Path, place: str, zipped: bool) -> None:
    folder = lay_mnist(tmp_path / place)
    if zipped:
        for path in list(folder.iterdir()):
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
            path.unlink()
    images, digits = read_mnist(tmp_path)
    assert np.array_equal(images, IMAGES)
    assert np.array_equal(digits, DIGITS)


@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=4), zipped=st.booleans())
def test_an_idx_file_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], zipped: bool
) -> None:
    values = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    path = tmp_path_factory.mktemp("idx") / "values"
    path.write_bytes(gzip.compress(idx(values)) if zipped else idx(values))
    assert np.array_equal(read_idx(path), values)
    assert read_idx(path).shape == tuple(shape)


SMALL = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is not an idx file of bytes"),
        (b"<html>404</html>", "is not an idx file of bytes"),
        (idx(SMALL).replace(b"\x08", b"\x0d", 1), "is not an idx file of bytes"),
        (idx(SMALL)[:-1], r"is damaged: it does not hold as many values as its header says, \(2, 3, 4\)"),
        (idx(SMALL) + b"\0", r"is damaged: it does not hold as many values as its header says, \(2, 3, 4\)"),
        (idx(SMALL)[:9], "is damaged: it does not hold as many values"),
        (b"\0\0\x08\xff" + b"\xff" * 1020, "is damaged: it does not hold as many values"),
        (gzip.compress(idx(SMALL))[:-9], "is damaged: it cannot be unpacked"),
        (gzip.compress(idx(SMALL))[:-5] + b"12345", "is damaged: it cannot be unpacked"),
        (gzip.compress(idx(SMALL))[:12] + b"\xff" * 20, "is damaged: it cannot be unpacked"),
    ],
    ids=[
        *("empty", "html", "floats", "cut", "longer", "cut header", "absurd sizes"),
        *("cut gzip", "wrong sum", "garbage in gzip"),
    ],
)
def test_a_damaged_idx_file_is_named_in_one_sentence_that_says_what_to_do(
    tmp_path: Path, content: bytes, what: str
) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"^{re.escape(str(path))} {what}.*{AGAIN.format('mnist')}"):
        read_idx(path)


@pytest.mark.parametrize(
    ("images", "digits"),
    [(IMAGES[:10_000], DIGITS[:10_000]), (IMAGES, DIGITS[:-1]), (IMAGES, DIGITS + 1)],
    ids=["the test set", "a label too few", "a label of ten"],
)
def test_what_is_not_mnist_is_refused(
    tmp_path: Path, images: NDArray[np.uint8], digits: NDArray[np.uint8]
) -> None:
    lay_mnist(tmp_path / "mnist", images, digits)
    with pytest.raises(DataError, match=f"not MNIST's 60,000 digits of 28 by 28{AGAIN.format('mnist')}"):
        read_mnist(tmp_path)


@pytest.mark.parametrize(("read", "name"), [(read_mnist, "mnist"), (read_cifar10, "cifar-10")])
@pytest.mark.parametrize("folder", [".", "nowhere"])
def test_a_folder_without_the_data_set_is_one_sentence_that_says_how_to_get_it(
    tmp_path: Path, read: Callable[[Path], object], name: str, folder: str
) -> None:
    with pytest.raises(DataError) as refusal:
        read(tmp_path / folder)
    assert str(refusal.value) == (
        f"{name} is not in {tmp_path / folder}; `fedilc data fetch {name}` downloads it, or name the folder "
        "that has it with `data_dir` or FEDILC_DATA"
    )


def test_a_missing_file_of_mnist_is_named(tmp_path: Path) -> None:
    (lay_mnist(tmp_path / "mnist") / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=f"train-labels-idx1-ubyte is missing{AGAIN.format('mnist')}"):
        read_mnist(tmp_path)


BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def pixels(number: int) -> NDArray[np.uint8]:
    """A batch of images that differ among themselves and from every other batch's."""
    rows, columns = np.arange(10_000, dtype=np.uint16)[:, None], np.arange(3072, dtype=np.uint16)
    return ((rows // (number + 1) + columns // 128) % 256).astype(np.uint8)


def classes(number: int) -> NDArray[np.uint8]:
    return ((np.arange(10_000) * 3 + number) % 10).astype(np.uint8)


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """CIFAR-10's two forms, each in a folder of its own; too large to be left behind."""
    root = tmp_path_factory.mktemp("cifar")
    folder = root / "bin" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for number, name in enumerate(BATCHES):
        rows = np.concatenate([classes(number)[:, None], pixels(number)], 1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    (root / "bin-archive").mkdir()
    with tarfile.open(root / "bin-archive" / "cifar-10-binary.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(root / "bin", ".")
    yield root
    shutil.rmtree(root)


@pytest.mark.parametrize(
    "place",
    ["bin", "bin/cifar-10-batches-bin", "bin-archive"],
)
def test_cifar10_is_the_same_in_every_form(forms: Path, place: str) -> None:
    images, labels, test_images, test_labels = read_cifar10(forms / place)
    assert images.shape == (50_000, 3, 32, 32)
    assert test_images.shape == (10_000, 3, 32, 32)
    for number in range(5):
        part = slice(10_000 * number, 10_000 * (number + 1))
        assert np.array_equal(images[part].reshape(-1, 3072), pixels(number))
        assert np.array_equal(labels[part], classes(number))
    assert np.array_equal(test_images.reshape(-1, 3072), pixels(5))
    assert np.array_equal(test_labels, classes(5))


@pytest.fixture
def linked(forms: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A form of CIFAR-10 again, in which files can be replaced."""

    def link(form: str) -> Path:
        return Path(shutil.copytree(forms / form, tmp_path / form, copy_function=os.link))

    return link


def replace(path: Path, content: bytes) -> Path:
    path.unlink()
    path.write_bytes(content)
    return path


def first_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def wrong_class(content: bytes) -> bytes:
    return b"\x0b" + content[1:]


def wrong_sum(content: bytes) -> bytes:
    """As if some pixels had changed, and nothing else."""
    return content[:-8] + bytes(byte ^ 255 for byte in content[-8:-4]) + content[-4:]


@pytest.mark.parametrize(
    ("name", "spoil", "what"),
    [
        ("bin/cifar-10-batches-bin/data_batch_1.bin", first_half, "it has 15,365,000 bytes, not 30,730,000"),
        ("bin/cifar-10-batches-bin/data_batch_1.bin", lambda c: c + b"\0", "it has 30,730,001 bytes, not"),
        ("bin/cifar-10-batches-bin/data_batch_1.bin", wrong_class, "it has a class beyond CIFAR-10's ten"),
        ("bin-archive/cifar-10-binary.tar.gz", first_half, "it cannot be unpacked"),
        ("bin-archive/cifar-10-binary.tar.gz", wrong_sum, "it cannot be unpacked"),
        ("bin-archive/cifar-10-binary.tar.gz", lambda _: b"<html>404</html>", "it cannot be unpacked"),
        ("bin-archive/cifar-10-binary.tar.gz", lambda _: b"", "it cannot be unpacked"),
    ],
    ids=[
        *("cut batch", "long batch", "wrong class", "cut archive", "wrong sum of archive", "no archive"),
        "empty archive",
    ],
)
def test_a_damaged_file_of_cifar10_is_named_in_one_sentence_that_says_what_to_do(
    linked: Callable[[str], Path], name: str, spoil: Callable[[bytes], bytes], what: str
) -> None:
    folder = linked(name.split("/")[0])
    path = replace(folder.parent / name, spoil((folder.parent / name).read_bytes()))
    with pytest.raises(DataError) as refusal:
        read_cifar10(folder)
    said = str(refusal.value)
    assert said.startswith(f"{path} is damaged")
    assert what in said
    assert "; `fedilc data fetch cifar-10` downloads the published " in said
    assert "\n" not in said


def test_a_missing_batch_is_named(linked: Callable[[str], Path]) -> None:
    folder = linked("bin")
    (folder / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=f"data_batch_4.bin is missing{AGAIN.format('cifar-10')}"):
        read_cifar10(folder)


def test_an_archive_without_a_batch_is_named(forms: Path, tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as members:
        for name in (*BATCHES[:2], *BATCHES[3:]):
            members.add(forms / "bin" / "cifar-10-batches-bin" / f"{name}.bin", name + ".bin")
    with pytest.raises(DataError, match=f"lacks data_batch_3.bin of CIFAR-10{AGAIN.format('cifar-10')}"):
        read_cifar10(tmp_path)


def test_a_whole_form_is_read_where_another_is_there_in_part(
    forms: Path, linked: Callable[[str], Path]
) -> None:
    folder = linked("bin")
    (folder / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    os.link(forms / "bin-archive" / "cifar-10-binary.tar.gz", folder / "cifar-10-binary.tar.gz")
    assert np.array_equal(read_cifar10(folder)[3], classes(5))


@pytest.mark.parametrize("given", [".", "cifar-10-batches-py", "cifar-10-python.tar.gz"])
def test_python_batches_are_refused_in_one_sentence_that_names_the_binary_version(
    tmp_path: Path, given: str
) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"a pickle")
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"an archive of pickles")
    with pytest.raises(DataError) as refusal:
        read_cifar10(tmp_path / given)
    assert str(refusal.value) == (
        f"{tmp_path / given} holds the Python batches of CIFAR-10; fedilc reads the binary version: "
        "`fedilc data fetch cifar-10`"
    )


def test_the_real_digits_and_photographs_are_read() -> None:
    folder = real_data("mnist", "cifar-10")
    images, digits = read_mnist(folder)
    assert digits[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert images.mean() == pytest.approx(33.318, abs=0.001)
    photographs, labels, test_photographs, test_labels = read_cifar10(folder)
    assert labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert np.bincount(labels).tolist() == [5000] * 10
    assert np.bincount(test_labels).tolist() == [1000] * 10
    means = [photographs[:, channel].mean() / 255 for channel in range(3)]
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    assert test_photographs.shape == (10_000, 3, 32, 32)
