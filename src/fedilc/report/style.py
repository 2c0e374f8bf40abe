"""How all our pictures look, and how they reach the disk."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from fedilc.algorithms import algorithms
from fedilc.errors import ConfigError
from fedilc.federation.checkpoint import write_atomically

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c")
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "legend.frameon": False,
    "font.size": 10,
}


def colour_of(algorithm: str) -> str:
    """The same colour for the same algorithm in every picture; what is not in the catalogue is grey.

    >>> colour_of("fedsgd") == COLOURS[0]
    True
    """
    return dict(zip(algorithms, COLOURS, strict=False)).get(algorithm, COLOURS[-1])


def save(figure: Figure, path: Path) -> None:
    """Write a picture as a whole or not at all, in the format its name ends with."""
    kind = path.suffix.lstrip(".").lower() or "png"
    picture = io.BytesIO()
    try:
        figure.savefig(picture, format=kind, dpi=130)
        content = _small(picture) if kind == "png" else picture.getvalue()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the picture {path} cannot be written: {str(error).splitlines()[0]}") from error


def _small(picture: io.BytesIO) -> bytes:
    """The same PNG with 256 colours, which nobody can tell apart from the full one: a third of the bytes."""
    small = io.BytesIO()
    with Image.open(picture) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return small.getvalue()
