"""`fedilc data eicu`: make one table of patients from eICU's raw tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.cli.console import make_console, make_table, say
from fedilc.cli.options import DataDir

if TYPE_CHECKING:
    from rich.table import Table

    from fedilc.data.benchmarks.eicu.preparation import PreparationReport


def eicu(
    source: Annotated[
        Path | None,
        typer.Option("--from", help="The folder of eICU's tables. (default: eicu in the data folder)"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The Parquet file to write. (default: eicu.parquet in the data folder)"),
    ] = None,
    silo_by: Annotated[str, typer.Option(help="What is a silo: hospital, or region.")] = "hospital",
    silos: Annotated[int, typer.Option(help="Keep this many silos, those with the most patients.")] = 58,
    min_patients: Annotated[int, typer.Option(help="Leave out silos with fewer patients.")] = 50,
    medicines: Annotated[int, typer.Option(help="Keep this many medicines, the most ordered.")] = 1399,
    min_uses: Annotated[int, typer.Option(help="Leave out medicines ordered for fewer patients.")] = 1,
    keep_cancelled: Annotated[
        bool, typer.Option("--keep-cancelled", help="Count cancelled orders too.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Make the table of patients that the experiment eicu trains on, from eICU's raw tables."""
    from fedilc.data.benchmarks.eicu.preparation import prepare, report_file
    from fedilc.data.download import data_folder

    folder = data_folder(data_dir).absolute()
    target = out or folder / "eicu.parquet"
    report = prepare(
        source or folder / "eicu",
        target,
        silo_by=silo_by,
        silos=silos,
        min_patients=min_patients,
        medicines=medicines,
        min_uses=min_uses,
        keep_cancelled=keep_cancelled,
    )
    console = make_console()
    console.print(_steps(report))
    for line in (*_facts(report), f"table: {target}", f"report: {report_file(target)}"):
        say(console, line)


def _steps(report: PreparationReport) -> Table:
    """Return a table of what was found, what was dropped and why, and what was kept."""
    numbers = ("orders", "stays", "patients")
    table = make_table("", *numbers, numbers=numbers)
    found, *dropped, kept = report.steps
    for step, sign in [(found, ""), *((step, "-") for step in dropped), (kept, "")]:
        counts = (step.orders, step.stays, step.patients)
        cells = [f"{sign}{count:,}" if count else "." for count in counts]
        table.add_row(step.what, *cells, style="" if sign else "bold")
    return table


def _facts(report: PreparationReport) -> list[str]:
    """Return the medicines and the silos of the table, one line each."""
    by = report.known_by
    medicines, orders = report.medicines, sum(by.values())
    sizes = [silo["patients"] for silo in report.silos.values()]
    died = sum(silo["died"] for silo in report.silos.values())
    shares = ", ".join(f"{number / orders:.1%} by {how}" for how, number in by.items())
    largest = next(iter(report.silos))
    return [
        f"medicines: {medicines['kept']:,} kept of {medicines['found']:,}; orders were known {shares}",
        f"patients with none of these medicines: {report.patients_with_no_kept_medicine:,}",
        f"silos: {len(sizes)} by {report.settings['silo_by']}, of {min(sizes):,} to {max(sizes):,} patients "
        f"(most in {largest})",
        f"died: {died:,} of {sum(sizes):,} patients ({died / sum(sizes):.1%})",
    ]
