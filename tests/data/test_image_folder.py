"""Pictures in folders by domain and class: what is read, what a model learns from, what is said."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import fedilc
from PIL import Image

from fedilc.data.image_folder import read_image_folder
from fedilc.errors import DataError, FedILCWarning


def draw(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three domains of two classes, dark and bright pictures of several sizes."""
    random = np.random.default_rng(0)
    for domain in ("art", "photo", "sketch"):
        for name, level in (("bright", 200), ("dark", 40)):
            for number in range(8):
                shape = (12 + number, 10, 3)
                kind = ("png", "jpg")[number % 2]
                pixels = random.integers(level - 30, level + 30, shape)
                draw(tmp_path / "pictures" / domain / name / f"{number}.{kind}", pixels)
    return tmp_path / "pictures"


def test_domains_are_silos_and_folders_are_classes(folder: Path) -> None:
    found = read_image_folder(folder, 8)
    assert list(found.silos) == ["art", "photo", "sketch"]
    label = found.preprocessing.label
    assert (label.classes, label.loss, label.outputs, found.notes) == (("bright", "dark"), "binary", 1, [])
    federation = found.federation("pictures", test="sketch", seed=0, validation=0.25)
    assert federation.inputs == (3, 8, 8)
    assert [len(silo) for silo in federation.silos] == [12, 12]
    x, y = found.arrays["art"]
    assert 0 <= x.min() < x.max() <= 1
    assert x[y == 0].mean() > x[y == 1].mean()


def test_a_picture_is_resized_and_divided_by_255(tmp_path: Path) -> None:
    for name, level in (("a", 51), ("b", 255)):
        draw(tmp_path / "p" / "d" / name / "1.png", np.full((5, 9), level))
    x, y = read_image_folder(tmp_path / "p", 4).arrays["d"]
    assert x.shape == (2, 1, 4, 4)
    assert x[0].unique().tolist() == pytest.approx([0.2])
    assert x[1].unique().tolist() == [1.0]
    assert y.tolist() == [0, 1]


def test_a_class_that_a_domain_lacks_is_noted_and_wrong_folders_are_refused(folder: Path) -> None:
    (folder / "art" / "dark").rename(folder / "art" / ".hidden")
    for path in (folder / "art" / ".hidden").iterdir():
        path.unlink()
    assert read_image_folder(folder, 8).notes == ["domain 'art' has no picture of dark"]
    (folder / "photo" / "dark" / "1.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"1\.jpg cannot be read as a picture"):
        _ = read_image_folder(folder, 8).arrays
    with pytest.raises(DataError, match="has no pictures in folders DOMAIN/CLASS"):
        read_image_folder(folder / "photo" / "dark", 8)


def test_from_pictures_to_scores_by_commands(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(
        'rounds = 3\nlearning_rate = 0.01\nalgorithm = "fedsgd"\n[data]\nsource = "images"\n'
        'folder = "pictures"\nimage_size = 8\ntest = "sketch"\n[model]\nname = "mlp"\nhidden = [4]\n'
    )
    fedilc("run", tmp_path / "e.toml", "--out", tmp_path / "run")
    fedilc("predict", tmp_path / "run", folder / "sketch", "-o", tmp_path / "scores.csv")
    scores = pl.read_csv(tmp_path / "scores.csv")
    assert scores.columns == ["row", "file", "probability", "prediction"]
    assert scores["file"][0] == "bright/0.png"
    assert set(scores["prediction"]) <= {"bright", "dark"}
    shown = fedilc("evaluate", tmp_path / "run", folder / "sketch")
    assert "8 events and 8 non-events" in " ".join(shown.split())  # a long path wraps the title


def test_an_experiment_says_the_note(folder: Path, tmp_path: Path) -> None:
    from fedilc.data.sources import Images

    for path in (folder / "art" / "dark").iterdir():
        path.unlink()
    with pytest.warns(FedILCWarning, match="domain 'art' has no picture of dark"):
        Images(folder="pictures", image_size=8).build(0, tmp_path)


def enormous(path: Path, side: int) -> None:
    """A PNG of a few bytes whose header promises side x side pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)


@pytest.mark.parametrize("side", [10_000, 40_000])
@pytest.mark.parametrize("name", ["0.png", "zz.png"])
def test_a_picture_of_too_many_pixels_is_one_sentence(folder: Path, side: int, name: str) -> None:
    """The first picture of a domain is opened for its channels, the others when they are needed."""
    enormous(folder / "art" / "bright" / name, side)
    with pytest.raises(DataError, match=rf"{name} has more than \d+ pixels; make it smaller"):
        assert read_image_folder(folder, 8).arrays


def test_a_picture_whose_checksum_is_wrong_is_one_sentence(folder: Path) -> None:
    path = folder / "art" / "bright" / "0.png"
    body = bytearray(path.read_bytes())
    body[body.index(b"IDAT") - 5] ^= 1
    path.write_bytes(body)
    with pytest.raises(DataError, match="cannot be read as a picture"):
        assert read_image_folder(folder, 8).arrays
