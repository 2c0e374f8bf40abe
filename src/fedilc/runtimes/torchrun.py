"""Which torchrun started this process: a restart goes on with the run of its own launch, and no older one.

The first rank leaves a mark where it begins a run, by which it knows the run after a restart.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_MARK = ".launch"


def attempt() -> int:
    """How often torchrun has started its processes again."""
    return int(os.environ.get(RESTARTS, "0"))


def launch() -> str | None:
    """A name that all attempts of one torchrun share; None if torchrun did not start this process.

    A job that is given an id has that one. One without an id is never moved to another machine, so that
    the process of torchrun itself tells launches apart.
    """
    job = os.environ.get("TORCHELASTIC_RUN_ID")
    if job != "none":
        return job
    parent = os.getppid()
    return f"{socket.gethostname()} {parent} {_born(parent)}"


def _born(process: int) -> str:
    """When a process began, where the system tells: numbers of processes come again."""
    try:
        about = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    return about.rpartition(")")[2].split()[19]


def mark(folder: Path) -> None:
    """Note that what will be in this folder is this launch's; without torchrun, do nothing."""
    name = launch()
    if name is None:
        return
    # If the folder cannot be written, the run itself says so.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).write_text(name)


def is_marked(folder: Path) -> bool:
    """Whether the mark of this launch, or of an earlier one of the same name, is in the folder."""
    try:
        return (folder / _MARK).read_text() == launch()
    except OSError:
        return False


def unmark(folder: Path) -> None:
    """Take away what an earlier launch of the same name left, which a restart would take for its own."""
    if is_marked(folder):
        (folder / _MARK).unlink(missing_ok=True)
