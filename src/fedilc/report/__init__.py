"""What a person sees of runs: tables, pictures, progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedilc.algorithms.registry import load_plugins
from fedilc.errors import require_extra

if TYPE_CHECKING:
    from fedilc.report.tables import TableData

FolderReport = Callable[[Path], "tuple[Sequence[TableData], str]"]
_folders: dict[str, FolderReport] = {}


def require_report(what: str) -> None:
    """Raise if the packages that draw pictures and compute p-values are not installed."""
    require_extra("report", what, "matplotlib", "PIL", "scipy")


def register_folder(file: str, remake: FolderReport) -> None:
    """Let `fedilc report FOLDER` make the tables of folders that hold a file of this name.

    `remake` writes what the folder's numbers show, and returns the tables and the names of what it wrote.
    """
    _folders[file] = remake


def folder_report(folder: Path) -> FolderReport | None:
    """Return what makes the tables of a folder, or None if none of the files registered is in it."""
    load_plugins()
    return next((remake for file, remake in _folders.items() if (folder / file).exists()), None)
