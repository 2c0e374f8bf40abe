"""What commands print: a console, sentences and tables, and the line that names a picture."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from fedilc.cli.flags import as_flags, with_flags
from fedilc.errors import ConfigError, FedILCWarning, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table


def make_console() -> Console:
    """Return the console to print on, as wide as the content needs if it is not a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


def say(console: Console, sentence: str) -> None:
    """Print text with flags for options: brackets are no markup, and long lines are not broken."""
    console.print(with_flags(sentence), markup=False, soft_wrap=True)


def say_notes(
    console: Console,
    folder: Path,
    notes: Sequence[str],
    details: Sequence[str],
    proposals: Sequence[tuple[str, str]],
) -> None:
    """Print notes, one per kind, and the command that applies what they propose; write details to notes.txt.

    `proposals` are settings of tables. If there is nothing to say, an earlier command's file is removed.
    """
    from fedilc.federation.run_identity import command_line

    for note in notes:
        say(console, f"note: {note}")
    apply = f"{command_line()} {as_flags(proposals)}" if proposals else ""
    if apply:
        say(console, f"to apply all of these proposals (leave out what you know better):\n  {apply}")
    path = folder / "notes.txt"
    lines = [*map(with_flags, details), *([f"\nto apply all of these proposals:\n{apply}"] if apply else [])]
    if not lines:
        path.unlink(missing_ok=True)
        return
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if len(details) > len(notes):
        say(console, f"each column and site of these notes: {path}")


def make_table(*headings: str, numbers: Collection[str] = ()) -> Table:
    """Return an empty table with a line below the headings; columns of `numbers` are aligned to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="", pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold")
    return table


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
