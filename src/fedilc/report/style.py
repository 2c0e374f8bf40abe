"""The common style of all pictures, and how they are saved."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedilc import algorithms
from fedilc.errors import ConfigError
from fedilc.federation.tensor_files import write_atomically
from fedilc.report import require_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    """Return an algorithm's colour, the same in every picture; grey if it is not in the catalogue.

    >>> colour_of("fedsgd") == COLOURS[0]
    True
    """
    return dict(zip(algorithms.names(), COLOURS, strict=False)).get(algorithm, COLOURS[-1])


def line_of(algorithm: str) -> tuple[float, tuple[float, ...] | None]:
    """Return a solid line, but dashes for `fishr-intra-arith`, which would hide its equal `fedcurv`."""
    return (0, (3, 3)) if algorithm == "fishr-intra-arith" else (0, None)


@contextmanager
def styled_figure(width: float, height: float, **style: Any) -> Iterator[Figure]:
    """Give an empty figure of this size in inches, and the common style while it is drawn and saved.

    Args:
        width: of the figure.
        height: of the figure.
        style: settings of matplotlib that differ here, with _ for the dots in their names.
    """
    require_report("a picture")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE | {name.replace("_", "."): value for name, value in style.items()}):
        yield Figure(figsize=(width, height), layout="constrained")


def add_title(figure: Figure, title: str, note: str) -> None:
    """Add a title above a picture, and below the title a note, in as many lines as they need."""
    width = int(12 * figure.get_figwidth())
    lines = [*wrap(title, width, break_on_hyphens=False), *wrap(note.removeprefix("; "), width)]
    figure.suptitle("\n".join(lines), fontsize=10.5)


def save(figure: Figure, path: Path) -> None:
    """Write a picture atomically, in the format that its suffix names."""
    kind = path.suffix.lstrip(".").lower() or "png"
    picture = io.BytesIO()
    try:
        figure.savefig(picture, format=kind, dpi=130)
        content = _with_256_colours(picture) if kind == "png" else picture.getvalue()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the picture {path} cannot be written: {str(error).splitlines()[0]}") from error


def _with_256_colours(picture: io.BytesIO) -> bytes:
    """Return the PNG with 256 colours, which are enough for it, in a third of the bytes."""
    from PIL import Image

    content = io.BytesIO()
    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        small.save(content, "png", optimize=True)
    return content.getvalue()
