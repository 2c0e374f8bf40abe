"""How commands print: a console, sentences, notes, tables, pictures and log lines (--log-format)."""

from __future__ import annotations

import gc
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedilc.cli.options import as_flags, with_flags
from fedilc.errors import ConfigError, FedILCWarning, printable, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

LogFormat = Annotated[
    str | None,
    typer.Option(help="Log to stderr, one line per event: text or json."),
]


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import modules without garbage collection, which takes a quarter of the time and finds nothing.

    If any were loaded, later collections skip everything that is in memory now.
    """
    enabled, loaded = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > loaded:
            gc.freeze()
        if enabled:
            gc.enable()


@contextmanager
def stage_progress(console: Console) -> Iterator[None]:
    """Show how far the work is that this process does itself, in a line that changes or every few seconds."""
    from fedilc.progress import seldom, showing

    if not console.is_terminal:
        with showing(seldom(partial(say, console))):
            yield
        return
    with console.status("") as status:
        status.stop()

        def show(what: str, done: int, total: int) -> None:
            status.update(f"{what}: {done} of {total}")
            status.stop() if done == total else status.start()

        with showing(show):
            yield


def log_to_stderr(kind: str | None) -> None:
    """Log the package's events to stderr in this format; do nothing if it is None."""
    if kind is None:
        return
    if kind not in ("text", "json"):
        raise ConfigError(f"--log-format {kind!r} is unknown; choose text or json")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(kind))
    logger = logging.getLogger("fedilc")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


class _Lines(logging.Formatter):
    """One line per event: its time in UTC, its level, what happened, and the facts."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = getattr(record, "facts", {})
        event = printable(record.getMessage())
        if self.kind == "json":
            line = {"time": when, "level": record.levelname.lower(), "logger": record.name, "event": event}
            return json.dumps(line | facts, default=str)
        details = "".join(f" {key}={json.dumps(value, default=str)}" for key, value in facts.items())
        return f"{when} {record.levelname.lower():7} {event}{details}"


def make_console() -> Console:
    """Return the console to print on, as wide as the content needs if it is not a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


def say(console: Console, sentence: str) -> None:
    """Print text with flags for options; brackets are not markup, and long lines are not broken."""
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
    from fedilc.storage.run_identity import command_line

    for note in notes:
        say(console, f"note: {note}")
    apply = f"{command_line()} {as_flags(proposals)}" if proposals else ""
    if apply:
        say(console, f"to apply all these proposals (leave out those you disagree with):\n  {apply}")
    path = folder / "notes.txt"
    lines = [*map(with_flags, details), *([f"\nto apply all these proposals:\n{apply}"] if apply else [])]
    if not lines:
        path.unlink(missing_ok=True)
        return
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if len(details) > len(notes):
        say(console, f"for each column and site, see {path}")


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
