"""Features are computed once: the cache is found by digests, continues after an interruption, and heals."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from tiny_backbone import FEATURES, draw_pictures, write_module

from fedilc import load, train
from fedilc.data import backbone_features
from fedilc.data.backbone_features import file_features
from fedilc.data.backbones import Backbone, find_backbone
from fedilc.data.download import cache_folder
from fedilc.data.image_folder import read_image_folder
from fedilc.errors import FedILCWarning
from fedilc.models import build_model
from fedilc.progress import showing

Read = Callable[[Path], NDArray[np.float32]]


class Reader:
    """Reads pixels, and counts the files it was asked for."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.read: list[Path] = []
        self.stop_at = stop_at

    def __call__(self, path: Path) -> NDArray[np.float32]:
        if len(self.read) == self.stop_at:
            raise KeyboardInterrupt
        self.read.append(path)
        return (np.asarray(Image.open(path), np.float32) / 255).transpose(2, 0, 1)


@pytest.fixture
def backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backbone:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(backbone_features, "BLOCK", 4)
    sys.modules.pop("tiny_eye", None)
    return find_backbone(write_module(tmp_path))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    random = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.png" for number in range(10)]
    for path in paths:
        Image.fromarray(random.integers(0, 255, (8, 8, 3)).astype(np.uint8)).save(path)
    return paths


def test_features_are_computed_once_and_only_for_new_pictures(backbone: Backbone, files: list[Path]) -> None:
    first, again, more = Reader(), Reader(), Reader()
    found = file_features(backbone, 8, files[:9], first)
    assert found.shape == (9, FEATURES)
    assert torch.equal(file_features(backbone, 8, files[:9][::-1], again), found.flip(0))
    assert (first.read, again.read) == (files[:9], [])
    with_new = file_features(backbone, 8, files, more)
    assert more.read == files[9:]
    assert torch.equal(with_new[:9], found)


def test_an_interrupted_computation_continues(backbone: Backbone, files: list[Path]) -> None:
    with pytest.raises(KeyboardInterrupt):
        file_features(backbone, 8, files, Reader(stop_at=6))
    rest = Reader()
    found = file_features(backbone, 8, files, rest)
    assert rest.read == files[4:]  # the first block was kept
    fresh = torch.cat([backbone.features(torch.from_numpy(Reader()(path))[None]) for path in files])
    assert torch.equal(found, fresh)


def test_a_damaged_block_is_computed_again(backbone: Backbone, files: list[Path]) -> None:
    found = file_features(backbone, 8, files, Reader())
    block = next((cache_folder() / "features").rglob("*.safetensors"))
    assert block.stat().st_mode & 0o077 == 0
    block.write_bytes(block.read_bytes()[:-3])
    again = Reader()
    assert torch.equal(file_features(backbone, 8, files, again), found)
    assert 0 < len(again.read) <= 4


def test_another_size_and_another_backbone_have_their_own_cache(
    backbone: Backbone, files: list[Path], tmp_path: Path
) -> None:
    file_features(backbone, 8, files, Reader())
    for other, size in ((backbone, 12), (find_backbone(write_module(tmp_path, "tiny_b", 2.0)), 8)):
        reader = Reader()
        file_features(other, size, files, reader)
        assert reader.read == files


def test_progress_ends_with_all_pictures(backbone: Backbone, files: list[Path]) -> None:
    seen: list[tuple[int, int]] = []
    with showing(lambda _, done, pictures: seen.append((done, pictures))):
        file_features(backbone, 8, files, Reader())
    assert seen == [(4, 10), (8, 10), (10, 10)]


def test_without_a_cache_features_are_not_kept(backbone: Backbone, files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.warns(FedILCWarning, match="features of pictures are not kept"):
        assert len(file_features(backbone, 8, files, Reader())) == 10


def test_a_head_is_trained_on_features_from_python(backbone: Backbone, tmp_path: Path) -> None:
    pictures = draw_pictures(tmp_path / "pictures", ("art", "photo", "sketch"))
    found = read_image_folder(pictures, backbone="tiny_eye:build")
    federation = found.federation("pictures", test="sketch", seed=0, validation=0.25)
    assert federation.inputs == (FEATURES,)
    head = build_model("linear", (FEATURES,), 1, 0)
    train(federation, head, "fedsgd", rounds=30, learning_rate=0.05, out=tmp_path / "out")
    loaded = load(tmp_path / "out", model=head, backbone="tiny_eye:build")
    y, logits = loaded.labelled(str(pictures / "sketch"))
    assert ((logits[:, 0] > 0) == y).mean() > 0.9
