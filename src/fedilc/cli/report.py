"""`fedilc report`: compare run folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.cli.console import make_console, quick_imports, say
from fedilc.errors import ConfigError
from fedilc.report import folder_report, require_report

if TYPE_CHECKING:
    from rich.console import Console


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, folders of run folders, or the folder of a study or campaign; for HTML also "
            "of an inspection."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The picture to write, or a one-page report (.html)."),
    ] = Path("report.png"),
) -> None:
    """Compare finished or unfinished runs; runs with other data or another test site get their own table.

    For the folder of a study, print its tables and its verdict. For the folder of a campaign without its
    runs, write its tables and pictures again from its numbers.
    """
    require_report("fedilc report")
    with quick_imports():
        from fedilc.report.plots import comparison_picture
        from fedilc.report.run_tables import comparison_table, run_groups
        from fedilc.storage.run_folder import UPDATES

    console = make_console()
    if out.suffix.lower() in (".html", ".htm"):
        _write_html(console, out, runs)
        return
    studies = [path for path in runs if (path / "study.json").exists()]
    for path in studies:
        _show(console, path)
    runs = [path for path in runs if path not in studies]
    if not runs:
        return
    places = [file.parent for path in runs for file in sorted(path.rglob("run.json"))]
    if not places and all(folder_report(path) for path in runs):
        for path in runs:
            _remake(console, path)
        return
    if not places:
        raise ConfigError(
            f"no run folder in {', '.join(map(str, runs))}; a run folder holds run.json, and the folder "
            "of a study study.json (an inspection is reported with -o report.html)"
        )
    groups = run_groups(places)
    if not groups:
        raise ConfigError("none of these runs has completed a round yet")
    out = out if out.suffix else out.with_suffix(".png")
    pictures = [out, *(out.with_stem(f"{out.stem}-{number}") for number in range(2, len(groups) + 1))]
    for group, picture in zip(groups, pictures, strict=True):
        comparison_picture(picture, group.title, group.histories)
        console.print(comparison_table(group.title, group.histories, first="run"))
        say(console, f"picture: {picture}")
        for run in group.runs:
            if updates := run.settings.get(UPDATES):
                say(
                    console,
                    f"{run.folder} was recalibrated after training, which these numbers leave out: "
                    f"{updates[-1]['answer']}",
                )
    if len(groups) > 1:
        say(
            console,
            "Runs of different experiments, examples or test sets are in different tables, because their "
            "numbers cannot be compared.",
        )


def _write_html(console: Console, out: Path, folders: list[Path]) -> None:
    from fedilc.report.html.report import write_html_report

    write_html_report(out, folders)
    say(console, f"report: {out}")


def _show(console: Console, study: Path) -> None:
    from fedilc.cli.study import show_study
    from fedilc.report.study_files import read_study

    show_study(console, read_study(study))
    say(console, f"\nfor a page of it: fedilc report {study} -o report.html")


def _remake(console: Console, folder: Path) -> None:
    from fedilc.report.tables import rich_table

    remake = folder_report(folder)
    assert remake is not None
    tables, written = remake(folder)
    for table in tables:
        console.print(rich_table(table, all_notes=False))
    say(console, f"written again: {folder} ({written})")
