"""`fedilc data`: list, fetch and check data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.cli.console import make_console, make_table, say
from fedilc.cli.options import DataDir
from fedilc.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from fedilc.data.download import DataSet

data_app = typer.Typer(name="data", help="List, fetch and check data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A data set, as `fedilc data list` names it.")]


@data_app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """Show all data sets, their folder, and which of them are present."""
    from fedilc.data.download import DATA_SETS, EMBEDDED, data_folder

    folder = data_folder(data_dir).absolute()
    table = make_table("name", "what it is", "size", "present")
    table.columns[0].no_wrap = table.columns[2].no_wrap = True
    for name in DATA_SETS.names():
        data = DATA_SETS.get(name)
        table.add_row(name, data.summary, data.size, _present(data, folder))
    console = make_console()
    console.print(table)
    say(console, f"folder: {folder}")
    by_hand = [name for name in DATA_SETS.names() if not DATA_SETS.get(name).mirrors]
    console.print(f"`fedilc data fetch NAME` gets one, or says how to get it ({', '.join(by_hand)})")
    console.print(f"part of the package, no download needed: {', '.join(EMBEDDED)}")


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
        say(console, f"fetched {path}")
    if not fetched:
        places = {str(path.parent) for path in download.check(name, folder)}
        say(console, f"{name} is already present: {', '.join(places)}")


@data_app.command()
def check(name: Name, data_dir: DataDir = None) -> None:
    """Show whether each file of a data set is fine, missing or damaged."""
    from fedilc.data import download

    folder = download.data_folder(data_dir).absolute()
    states = download.check(name, folder)
    console = make_console()
    for path, state in states.items():
        said = "present, but no checksum is published" if state == "unchecked" else state
        say(console, f"{path}: {said}")
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
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def bar(file: str) -> _FileBar:
            if file not in tasks:
                tasks[file] = progress.add_task(file, total=None)
            return _FileBar(progress, tasks[file])

        yield bar


class _FileBar:
    """One file's bar among several, as pooch uses it: it sets `total` before the first update."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.total = 0
        self._progress = progress
        self._task = task
        self.reset()

    def update(self, size: int) -> None:
        self._progress.update(self._task, total=self.total or None, advance=size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.update(self._task, completed=self.total)
