"""`fedilc data`: list, fetch and check data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.cli.console import make_console
from fedilc.cli.options import DataDir
from fedilc.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from fedilc.data.data_sets import DataSet

data_app = typer.Typer(help="List, fetch and check data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A data set, as `fedilc data list` names it.")]


@data_app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """Show the data sets, their folder, and which are present."""
    from rich import box
    from rich.table import Table

    from fedilc.data.data_sets import DATA_SETS
    from fedilc.data.download import data_folder

    folder = data_folder(data_dir).absolute()
    table = Table(box=box.SIMPLE_HEAD, header_style="", pad_edge=False)
    for heading in ("name", "what it is", "size", "present"):
        table.add_column(heading, no_wrap=heading in ("name", "size"), overflow="fold")
    for name, data in DATA_SETS.items():
        table.add_row(name, data.summary, data.size, _present(data, folder))
    console = make_console()
    console.print(table)
    console.print(f"folder: {folder}", soft_wrap=True, markup=False)
    by_hand = [name for name, data in DATA_SETS.items() if not data.mirrors]
    console.print(f"`fedilc data fetch NAME` gets one, or says how to get it ({', '.join(by_hand)})")


def _present(data: DataSet, folder: Path) -> str:
    form = data.found(folder)
    share = form.share(folder)
    place = f"{form.folder or '.'}/"
    if share == 1:
        return f"yes, in {place}"
    return f"{share * len(form.files):.0f} of {len(form.files)} files, in {place}" if share else "no"


@data_app.command()
def fetch(name: Name, data_dir: DataDir = None) -> None:
    """Download a data set, and check it against its published checksums."""
    from fedilc.data import download

    folder = download.data_folder(data_dir).absolute()
    console = make_console()
    with _bars(console) as progress:
        fetched = download.fetch(name, folder, progress)
    for path in fetched:
        console.print(f"fetched {path}", soft_wrap=True, markup=False)
    if not fetched:
        places = {str(path.parent) for path in download.check(name, folder)}
        console.print(f"{name} is already present: {', '.join(places)}", soft_wrap=True, markup=False)


@data_app.command()
def check(name: Name, data_dir: DataDir = None) -> None:
    """Say of each file of a data set whether it is fine, missing or damaged."""
    from fedilc.data import download

    folder = download.data_folder(data_dir).absolute()
    states = download.check(name, folder)
    console = make_console()
    for path, state in states.items():
        said = "present, but no checksum is published" if state == "unchecked" else state
        console.print(f"{path}: {said}", soft_wrap=True, markup=False)
    wrong = [state for state in states.values() if state in ("missing", "damaged")]
    if wrong:
        kinds = " and ".join(f"{wrong.count(kind)} {kind}" for kind in dict.fromkeys(wrong))
        raise DataError(f"{name} is not complete ({kinds} of {len(states)}); run `fedilc data fetch {name}`")


@contextmanager
def _bars(console: Console) -> Iterator[Callable[[str], _FileBar] | None]:
    """Show a progress bar per downloaded file, if output is a terminal."""
    if not console.is_terminal:
        yield None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def bar(file: str) -> _FileBar:
            if file not in tasks:
                tasks[file] = progress.add_task(file, total=None)
            return _FileBar(progress, tasks[file])

        yield bar


class _FileBar:
    """One file's bar among several, as pooch drives it."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._total = 0
        self.reset()

    @property
    def total(self) -> int:
        return self._total

    @total.setter
    def total(self, size: int) -> None:
        self._total = size
        self._progress.update(self._task, total=size or None)

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.update(self._task, completed=self._total)
