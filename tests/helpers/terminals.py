"""What rich prints in a terminal of some width, as text."""

from __future__ import annotations

import io

from rich.console import Console


def in_terminal(printed: object, width: int, styled: bool = False) -> str:
    """A table as a terminal shows it; with its styles, where these are asked for."""
    file = io.StringIO()
    colours = "standard" if styled else None
    Console(file=file, width=width, force_terminal=styled, color_system=colours, highlight=False).print(
        printed
    )
    return file.getvalue()
