"""`fedilc check`: list the problems of an experiment before training, or of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.cli.console import make_console, make_table, quick_imports, say
from fedilc.cli.options import Changes, DataDir, ModelFunction, use_data_folder

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedilc.studies.checking import Checked, Row


def check(
    target: Annotated[str, typer.Argument(help="A shipped experiment, a TOML file or a run folder.")],
    changes: Changes = None,
    model: ModelFunction = None,
    data_dir: DataDir = None,
) -> None:
    """List all problems of an experiment's data and settings, or of the files of a run folder.

    Nothing is trained or changed. The exit code is 0 if there is no problem, and 2 if there is one.
    """
    if (Path(target) / "run.json").exists():
        _check_run(make_console(), Path(target))
        return
    use_data_folder(data_dir)
    _check_experiment(make_console(), target, changes or [], model)


def _check_experiment(console: Console, target: str, changes: list[str], own: str | None) -> None:
    with quick_imports():
        from fedilc.config import read_experiment
        from fedilc.studies.checking import check_experiment

    settings, folder = read_experiment(target, changes)
    found = check_experiment(settings, folder, own)
    if found.rows:
        console.print(_table(found))
    for kind, sentences in (("problem", found.report.problems), ("note", found.report.notes)):
        for sentence in sentences:
            say(console, f"{kind}: {sentence}")
    problems = len(found.report.problems)
    if problems:
        count = "one problem" if problems == 1 else f"{problems} problems"
        say(console, f"{target} cannot be trained: {count}")
        raise typer.Exit(2)
    say(console, f"{target} can be trained")


def _check_run(console: Console, folder: Path) -> None:
    from fedilc.storage.run_folder import examine

    found = examine(folder)
    for name, trouble in found.items():
        say(console, f"{name}: {trouble or 'whole'}")
    damaged = [name for name, trouble in found.items() if trouble]
    if damaged:
        say(console, f"{folder} is damaged: {', '.join(damaged)}")
        raise typer.Exit(2)
    say(console, f"{folder} is whole: {len(found)} files")


def _table(found: Checked) -> Table:
    files = any(row.file for row in found.rows)
    headings = ("silo", "file", "training", "validation", "inputs", "labels")
    shown = [heading for heading in headings if files or heading != "file"]
    table = make_table(*shown, numbers=("training", "validation"))
    for row in found.rows:
        cells = dict(zip(headings, _cells(row), strict=True))
        table.add_row(*(cells[heading] for heading in shown))
    if found.hidden:
        table.caption = f"{found.hidden:,} more silos are not shown"
    return table


def _cells(row: Row) -> list[str]:
    from rich.markup import escape

    counts = ["-" if count is None else f"{count:,}" for count in (row.examples, row.validation)]
    from fedilc.data.inputs import is_several, shape_text

    inputs = " x ".join(map(str, row.inputs)) + (" columns" if len(row.inputs) == 1 else "")
    if is_several(row.inputs):
        inputs = shape_text(row.inputs)
    labels = row.labels or {}
    shown = [f"{label}: {count:,}" for label, count in list(labels.items())[:10]]
    more = ", ..." if len(labels) > 10 else ""
    return [escape(row.name), escape(row.file), *counts, inputs, ", ".join(shown) + more]
