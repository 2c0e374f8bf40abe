"""`fedilc report`: compare run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedilc.cli.console import make_console
from fedilc.cli.quick_imports import quick_imports
from fedilc.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from fedilc.federation import Record


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, folders of run folders, or the folder of a campaign; for HTML also those of "
            "studies and inspections."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Where to write the picture, or a report of one page (.html)."),
    ] = Path("report.png"),
) -> None:
    """Compare finished or unfinished runs; those of other data or another test site have their own table.

    For the folder of a campaign without its runs, write its tables and pictures again from its numbers.
    """
    with quick_imports():
        from fedilc.report.run_plots import comparison_picture
        from fedilc.report.run_tables import comparison_table

    console = make_console()
    if out.suffix.lower() in (".html", ".htm"):
        _write_html(console, out, runs)
        return
    places = [file.parent for path in runs for file in sorted(path.rglob("run.json"))]
    if not places and all((path / "campaign.json").exists() for path in runs):
        for path in runs:
            _remake(console, path)
        return
    if not places:
        raise ConfigError(
            f"no run folder in {', '.join(map(str, runs))}; a run folder holds run.json (a study or an "
            "inspection is reported with -o report.html)"
        )
    groups = _groups(places)
    out = out if out.suffix else out.with_suffix(".png")
    pictures = [out, *(out.with_stem(f"{out.stem}-{number}") for number in range(2, len(groups) + 1))]
    for (title, histories), picture in zip(groups.items(), pictures, strict=True):
        comparison_picture(picture, title, histories)
        console.print(comparison_table(title, histories, first="run"))
        console.print(f"picture: {picture}", soft_wrap=True, markup=False)
    if len(groups) > 1:
        console.print(
            "Runs of different experiments, examples or test sets are in different tables: their numbers "
            "do not compare.",
            soft_wrap=True,
        )


def _write_html(console: Console, out: Path, folders: list[Path]) -> None:
    from fedilc.report.html.report import write_html_report

    write_html_report(out, folders)
    console.print(f"report: {out}", soft_wrap=True, markup=False)


def _remake(console: Console, campaign: Path) -> None:
    from fedilc.report.campaign.folder import remake_campaign
    from fedilc.report.table_formats import rich_table

    for table in remake_campaign(campaign):
        console.print(rich_table(table, all_notes=False))
    files = "tables.md, tables.tex, tables/*.csv, figures/*.png"
    console.print(f"written again: {campaign} ({files})", soft_wrap=True, markup=False)


def _groups(places: list[Path]) -> dict[str, dict[str, list[Record]]]:
    """Return the histories by run, under the title of each set of runs that share their data."""
    from fedilc.federation import RunFolder

    found: dict[str, tuple[set[str], dict[str, list[Record]]]] = {}
    for place in places:
        history = RunFolder(place).history()
        if history:
            settings = RunFolder(place).settings()
            data = json.dumps([settings.get(key) for key in ("experiment", "federation", "silos", "test")])
            titles, histories = found.setdefault(data, (set(), {}))
            titles.add(_title(settings))
            histories[_label(place, places)] = history
    if not found:
        raise ConfigError("none of these runs has completed a round yet")
    named: dict[str, dict[str, list[Record]]] = {}
    for titles, histories in found.values():
        title = ", ".join(sorted(titles))
        again = sum(known.split(" · data ")[0] == title for known in named)
        named[f"{title} · data {again + 1}" if again else title] = histories
    return named


def _title(settings: dict[str, Any]) -> str:
    return f"{settings.get('experiment') or settings.get('federation')} · seed {settings.get('seed')}"


def _label(place: Path, places: list[Path]) -> str:
    name = place.resolve().name
    same = [other for other in places if other.resolve().name == name]
    return name if len(same) == 1 else str(place)
