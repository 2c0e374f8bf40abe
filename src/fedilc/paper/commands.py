"""`fedilc reproduce`, `fedilc sweep` and `fedilc data eicu`: the paper's benchmarks and tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.cli.console import make_console, make_table, say
from fedilc.cli.data import data_app
from fedilc.cli.jobs import EvaluateEvery, Jobs, Rounds, Seeds, Subset, job_changes, run_all
from fedilc.cli.options import (
    Changes,
    DataDir,
    ExperimentName,
    comma_numbers,
    not_a_file,
    only_one,
    use_data_folder,
)
from fedilc.report import require_report

if TYPE_CHECKING:
    from rich.table import Table

    from fedilc.paper.eicu_tables import PreparationReport


def reproduce(
    benchmark: Annotated[
        str,
        typer.Argument(help="color-mnist, rotated-cifar10, eicu, eicu-demo, eicu-synthetic or color-digits."),
    ] = "color-mnist",
    algorithm: Annotated[
        list[str] | None, typer.Option("--algorithm", "-a", help="Train only this algorithm; may repeat.")
    ] = None,
    seeds: Seeds = 5,
    jobs: Jobs = None,
    rounds: Rounds = None,
    subset: Subset = None,
    evaluate_every: EvaluateEvery = None,
    changes: Changes = None,
    out: Annotated[
        Path | None,
        typer.Option(callback=not_a_file, help="The folder for results. (default: results/BENCHMARK)"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Train the paper's algorithms with several seeds, and print our numbers beside those of the paper.

    Each table has the round of lowest validation loss, the last round, and the paper's choice (oracle): the
    round of lowest test loss after round 5, which nobody can know in practice.
    Finished runs are kept: interrupt the command and run it again to continue.
    """
    require_report("fedilc reproduce")
    from fedilc.paper.campaign_folder import write_campaign
    from fedilc.paper.reproduce import Plan, score
    from fedilc.report.tables import rich_table

    use_data_folder(data_dir)
    given = [*job_changes(rounds, subset, evaluate_every), *(changes or [])]
    plan = Plan.of(benchmark, algorithm or [], seeds, given, out)
    console = make_console()
    say(console, f"{plan.benchmark}: {plan.note}")
    run_all(console, plan.jobs(), jobs)
    with console.status("tables and pictures"):
        tables = write_campaign(plan.out, plan.campaign(), score(plan))
    for table in tables:
        console.print(rich_table(table, all_notes=False))
    files = "tables.md, tables.tex, tables/*.csv, summary.json, history.csv, figures/*.png"
    say(console, f"results: {plan.out} ({files})")


sweep_app = typer.Typer(
    name="sweep", help="Train one algorithm with several values of a setting.", no_args_is_help=True
)


@sweep_app.command("lambda")
def lambda_(
    experiment: ExperimentName = "color-digits",
    values: Annotated[
        str, typer.Option(help="The values of lambda, separated by commas.")
    ] = "0,0.01,0.1,1,10,100",
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", "-a", help="An algorithm with a penalty. (default: fishr-inter-geo)"),
    ] = None,
    seeds: Seeds = 3,
    jobs: Jobs = None,
    rounds: Rounds = None,
    subset: Subset = None,
    evaluate_every: EvaluateEvery = None,
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for results. (default: results/EXPERIMENT-lambda)")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Train with several penalty weights (lambda), and choose one by the silos' validation loss.

    The loss at the test site is shown beside it: at the round of lowest validation loss, and at the round of
    lowest test loss (the oracle's), which nobody can know in practice.
    """
    require_report("fedilc sweep")
    from fedilc.paper.sweep import Sweep, write_sweep
    from fedilc.report.tables import rich_table

    use_data_folder(data_dir)
    given = [*job_changes(rounds, subset, evaluate_every), *(changes or [])]
    lambdas = list(comma_numbers(values, "--values", zero=True))
    name = only_one(algorithm, "a sweep") or "fishr-inter-geo"
    sweep = Sweep.of(experiment, name, lambdas, seeds, given, out)
    console = make_console()
    run_all(console, sweep.jobs(), jobs)
    console.print(rich_table(write_sweep(sweep)))
    files = "tables.md, tables.tex, tables/*.csv, lambda.png"
    say(console, f"results: {sweep.out} ({files})")


def eicu(
    source: Annotated[
        Path | None,
        typer.Option("--from", help="The folder of eICU's tables. (default: eicu in the data folder)"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The Parquet file to write. (default: eicu.parquet in the data folder)"),
    ] = None,
    silo_by: Annotated[str, typer.Option(help="What to take as a silo: hospital or region.")] = "hospital",
    silos: Annotated[int, typer.Option(help="Keep this many silos: those with the most patients.")] = 58,
    min_patients: Annotated[int, typer.Option(help="Leave out silos with fewer patients.")] = 50,
    medicines: Annotated[int, typer.Option(help="Keep this many medicines: the most ordered.")] = 1399,
    min_uses: Annotated[int, typer.Option(help="Leave out medicines ordered for fewer patients.")] = 1,
    keep_cancelled: Annotated[
        bool, typer.Option("--keep-cancelled", help="Count cancelled orders too.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Make the table of patients that the experiment eicu trains on, from eICU's raw tables."""
    from fedilc.data.download import data_folder
    from fedilc.paper.eicu_tables import prepare, report_file

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


def add_commands(app: typer.Typer) -> None:
    """Add the paper's commands to `fedilc`."""
    panel = "Reproduce the paper"
    app.command("reproduce", rich_help_panel=panel)(reproduce)
    app.add_typer(sweep_app, rich_help_panel=panel)
    data_app.command()(eicu)
