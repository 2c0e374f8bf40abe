"""Silos from images in folders DOMAIN/CLASS/picture.png; every domain is a silo."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from torch import Tensor

from fedilc.algorithms.loss_registry import LossName
from fedilc.data.backbone_features import file_features
from fedilc.data.backbones import Backbone, BackboneFacts, find_backbone
from fedilc.data.silo import Federation, split_silo
from fedilc.data.tables.label_rule import LabelRule
from fedilc.errors import DataError, listed, nearest, require_extra

if TYPE_CHECKING:
    from PIL import Image

SIZE = 32  # pixels per side, if none are given
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


class ImagePreprocessing(BaseModel):
    """The conversion of a picture to an input: its size and channels, and numbers from 0 to 1.

    Attributes:
        label: the classes, by the names of their folders.
        size: pixels per side; pictures are resized, whatever their shape.
        channels: 1 for grey pictures, 3 for colours.
        backbone: the frozen network whose features are the inputs; None if pixels are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["images"] = "images"
    label: LabelRule
    size: int = Field(ge=1, le=4096)
    channels: Literal[1, 3]
    columns: tuple[str, ...] = ()
    backbone: BackboneFacts | None = None

    @property
    def pixels(self) -> tuple[int, int, int]:
        """Return the shape of one picture."""
        return (self.channels, self.size, self.size)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Return the shape of one input: of a picture, or of its features."""
        return self.pixels if self.backbone is None else (self.backbone.features,)

    @model_serializer(mode="wrap")
    def _without_backbone(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `backbone` if there is none, so that a run has the identity that it had without it."""
        return {key: value for key, value in dump(self).items() if key != "backbone" or value is not None}

    def transform(self, files: Sequence[Path], backbone: Backbone | None = None) -> Tensor:
        """Return the inputs of picture files; `backbone` is the network that `self.backbone` describes."""
        if backbone is not None:
            return file_features(backbone, self.size, files, self._pixels)
        found = torch.empty(len(files), *self.inputs)
        for place, path in enumerate(files):
            found[place] = torch.from_numpy(self._pixels(path))
        return found

    def _pixels(self, path: Path) -> NDArray[np.float32]:
        with opened_picture(path) as picture:
            small = picture.convert("L" if self.channels == 1 else "RGB").resize((self.size, self.size))
        pixels: NDArray[np.float32] = np.asarray(small, dtype=np.float32) / np.float32(255)
        return pixels[None] if self.channels == 1 else pixels.transpose(2, 0, 1)


@contextmanager
def opened_picture(path: Path) -> Iterator[Image.Image]:
    """Open a picture; raise one sentence if it is damaged, or so large that it would fill the memory."""
    require_extra("images", "a folder of images", "PIL")
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as picture:
                yield picture
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path} has more than {Image.MAX_IMAGE_PIXELS} pixels; make it smaller, or leave it out"
        ) from error
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError) as error:
        raise DataError(f"{path} cannot be read as a picture: {error}") from error


@dataclass(frozen=True)
class ImageFolder:
    """Domains of pictures, each a silo; `silos` has the files of each class by domain."""

    silos: dict[str, dict[str, list[Path]]]
    preprocessing: ImagePreprocessing
    backbone: Backbone | None = None

    @cached_property
    def arrays(self) -> dict[str, tuple[Tensor, NDArray[Any]]]:
        """Return the inputs and labels of each domain."""
        classes, found = self.preprocessing.label.classes, {}
        for name, parts in self.silos.items():
            files = [path for files in parts.values() for path in files]
            y = np.repeat([classes.index(part) for part in parts], list(map(len, parts.values())))
            found[name] = (self.preprocessing.transform(files, self.backbone), y)
        return found

    @property
    def notes(self) -> list[str]:
        """Return a sentence on each domain that lacks a class."""
        classes = self.preprocessing.label.classes
        return [
            f"domain {name!r} has no picture of {listed([c for c in classes if c not in parts], 8)}"
            for name, parts in self.silos.items()
            if len(parts) < len(classes)
        ]

    def federation(self, name: str, *, test: str | None, seed: int, validation: float) -> Federation:
        """Return a federation of all domains; one may be held out as the test set."""
        if test is not None and test not in self.silos:
            raise DataError(f"there is no domain {test!r}{nearest(test, self.silos)}")
        trained = [silo for silo in self.silos if silo != test]
        if not trained:
            raise DataError(
                f"only the test set {test!r} is there, and no domain to train on; give another one"
            )
        x_test, y_test = (None, None) if test is None else self.arrays[test]
        silos = [split_silo(silo, *self.arrays[silo], validation, seed) for silo in trained]
        made = self.preprocessing
        return Federation(name, silos, x_test, y_test, made.label.loss, preprocessing=made)


def read_image_folder(folder: Path, size: int | None = None, backbone: str | None = None) -> ImageFolder:
    """Find the pictures of a folder of domains and classes; they are read when they are needed.

    The first picture of every domain decides whether all have one channel or three. With a backbone, by name
    or as `module:function`, they have three and its size, unless another size is given.
    """
    found: dict[str, dict[str, list[Path]]] = {}
    for place in sorted(folder.glob("[!.]*/*/")):
        if pictures := pictures_below(place):
            found.setdefault(place.parent.name, {})[place.name] = pictures
    if not found:
        raise DataError(
            f"{folder} has no pictures in folders DOMAIN/CLASS (such as {folder / 'site-a/benign/1.png'})"
        )
    classes = sorted({name for domain in found.values() for name in domain})
    if len(classes) < 2:
        raise DataError(f"{folder} has only one class ({classes[0]}); there is nothing to learn")
    rule = class_rule(classes)
    if backbone is not None:
        network, made = image_features(rule, size, backbone)
        return ImageFolder(found, made, network)
    first = [next(iter(parts.values()))[0] for parts in found.values()]
    return ImageFolder(found, ImagePreprocessing(label=rule, size=size or SIZE, channels=_channels(first)))


def image_features(rule: LabelRule, size: int | None, name: str) -> tuple[Backbone, ImagePreprocessing]:
    """Return a backbone, and the preprocessing of pictures to its features."""
    backbone = find_backbone(name)
    chosen = size or backbone.size
    facts = backbone.facts(chosen)
    return backbone, ImagePreprocessing(label=rule, size=chosen, channels=3, backbone=facts)


def class_rule(classes: Sequence[str]) -> LabelRule:
    """Return the label of pictures whose classes are folders; raise if there is only one class."""
    loss: LossName = "binary" if len(classes) == 2 else "multiclass"
    return LabelRule(text="class", column="class", loss=loss, classes=tuple(classes))


def labelled_pictures(folder: Path, classes: Sequence[str]) -> tuple[list[Path], NDArray[Any]]:
    """Return the pictures in folders named as classes, below a folder, and their class numbers."""
    kept = [path for path in pictures_below(folder) if path.parent.name in classes]
    if not kept:
        raise DataError(f"{folder} has no pictures in folders named {listed(classes)}")
    return kept, np.array([classes.index(path.parent.name) for path in kept])


def _channels(pictures: Sequence[Path]) -> Literal[1, 3]:
    """Return 1 if all pictures are grey, and 3 if not."""
    for path in pictures:
        with opened_picture(path) as picture:
            if picture.mode not in ("1", "L", "I", "I;16"):
                return 3
    return 1


def pictures_below(folder: Path) -> list[Path]:
    """Return all pictures in a folder and the folders below it, by name."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
