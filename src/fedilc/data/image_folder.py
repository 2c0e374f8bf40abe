"""Silos of images in folders DOMAIN/CLASS/picture.png; every domain is a silo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedilc.algorithms.loss_name import LossName
from fedilc.data.silo import Federation, split_silo
from fedilc.data.tables.label_rule import LabelRule
from fedilc.errors import DataError, listed, nearest

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


class ImagePreprocessing(BaseModel):
    """The conversion of a picture to an input: its size and channels, and numbers from 0 to 1.

    Attributes:
        label: the classes, by the names of their folders.
        size: pixels per side; pictures are resized, whatever their shape.
        channels: 1 for grey pictures, 3 for colours.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["images"] = "images"
    label: LabelRule
    size: int = Field(ge=1, le=4096)
    channels: Literal[1, 3]
    columns: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[int, ...]:
        """Return the shape of one input."""
        return (self.channels, self.size, self.size)

    def transform(self, files: Sequence[Path]) -> Tensor:
        """Return the inputs of picture files."""
        found = torch.empty(len(files), *self.inputs)
        for place, path in enumerate(files):
            found[place] = torch.from_numpy(self._pixels(path))
        return found

    def _pixels(self, path: Path) -> NDArray[np.float32]:
        from PIL import Image

        try:
            with Image.open(path) as picture:
                small = picture.convert("L" if self.channels == 1 else "RGB").resize((self.size, self.size))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(f"{path} cannot be read as a picture: {error}") from error
        pixels: NDArray[np.float32] = np.asarray(small, dtype=np.float32) / np.float32(255)
        return pixels[None] if self.channels == 1 else pixels.transpose(2, 0, 1)


@dataclass(frozen=True)
class ImageSilo:
    """One domain's pictures and the numbers of their classes."""

    name: str
    files: list[Path] = field(repr=False)
    y: NDArray[Any] = field(repr=False)


@dataclass(frozen=True)
class ImageFolder:
    """Domains of pictures, each a silo."""

    silos: dict[str, ImageSilo]
    preprocessing: ImagePreprocessing
    notes: list[str]

    @cached_property
    def arrays(self) -> dict[str, tuple[Tensor, NDArray[Any]]]:
        """Return the inputs and labels of each domain."""
        return {name: (self.preprocessing.transform(s.files), s.y) for name, s in self.silos.items()}

    def federation(self, name: str, *, test: str | None, seed: int, validation: float) -> Federation:
        """Return a federation of all domains; one may be held out as the test set."""
        if test is not None and test not in self.silos:
            raise DataError(f"there is no domain {test!r}{nearest(test, self.silos)}")
        trained = [silo for silo in self.silos if silo != test]
        if not trained:
            raise DataError(f"no domain but the test set {test!r} is left to train on; give another one")
        x_test, y_test = (None, None) if test is None else self.arrays[test]
        silos = [split_silo(silo, *self.arrays[silo], validation, seed) for silo in trained]
        made = self.preprocessing
        return Federation(name, silos, x_test, y_test, made.label.loss, preprocessing=made)


def pictures_below(folder: Path) -> list[Path]:
    """Return all pictures in a folder and the folders below it, by name."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def read_image_folder(folder: Path, size: int) -> ImageFolder:
    """Find the pictures of a folder of domains and classes; they are read when they are needed."""
    domains = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = {
        domain.name: {
            sub.name: pictures
            for sub in sorted(domain.iterdir())
            if sub.is_dir() and (pictures := pictures_below(sub))
        }
        for domain in domains
    }
    found = {name: classes for name, classes in found.items() if classes}
    if not found:
        raise DataError(
            f"{folder} has no pictures in folders DOMAIN/CLASS (such as {folder.name}/site-a/benign/1.png)"
        )
    classes = sorted({name for domain in found.values() for name in domain})
    if len(classes) < 2:
        raise DataError(f"{folder} has only one class ({classes[0]}), so there is nothing to learn")
    loss: LossName = "binary" if len(classes) == 2 else "multiclass"
    rule = LabelRule(text="class", column="class", loss=loss, classes=tuple(classes))
    silos = {}
    for name, parts in found.items():
        files = [path for pictures in parts.values() for path in pictures]
        y = np.repeat([classes.index(part) for part in parts], [len(p) for p in parts.values()])
        silos[name] = ImageSilo(name, files, y)
    made = ImagePreprocessing(label=rule, size=size, channels=_channels(silos))
    return ImageFolder(silos, made, _notes(found, classes))


def _channels(silos: dict[str, ImageSilo]) -> Literal[1, 3]:
    """Return 1 if the first picture of every domain is grey, and 3 if not."""
    from PIL import Image

    for silo in silos.values():
        try:
            with Image.open(silo.files[0]) as picture:
                if picture.mode not in ("1", "L", "I", "I;16"):
                    return 3
        except OSError as error:
            raise DataError(f"{silo.files[0]} cannot be read as a picture: {error}") from error
    return 1


def _notes(found: dict[str, dict[str, list[Path]]], classes: Sequence[str]) -> list[str]:
    return [
        f"domain {name!r} has no picture of {listed([c for c in classes if c not in parts], 8)}"
        for name, parts in found.items()
        if len(parts) < len(classes)
    ]
