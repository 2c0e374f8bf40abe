"""The console that commands print to."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from fedilc.errors import ConfigError, FedILCWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console


def make_console() -> Console:
    """Return the console to print on, as wide as the content needs if it is not a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


def drawn(draw: Callable[..., object], picture: Path, *what: Any) -> str:
    """Draw the picture that ends a run; return the line that names it, or none and a note if it failed.

    A run is complete without its picture, so that a full disk is not a failure of the run.
    """
    try:
        draw(picture, *what)
    except ConfigError as error:
        warnings.warn(str(error), FedILCWarning, stacklevel=2)
        return ""
    return f"picture: {picture}\n"
