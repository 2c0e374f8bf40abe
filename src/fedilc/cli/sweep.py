"""`fedilc sweep`: train one algorithm with several values of a setting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedilc.cli.console import make_console, say
from fedilc.cli.jobs import EvaluateEvery, Jobs, Rounds, Seeds, Subset, job_changes, run_all
from fedilc.cli.options import Changes, DataDir, ExperimentName, comma_numbers, only_one, use_data_folder
from fedilc.report import require_report

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
        Path | None, typer.Option(help="Where results go. (default: results/EXPERIMENT-lambda)")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Train with several weights of the penalty (lambda), and choose one by the silos' validation loss.

    The loss at the test site is shown beside it: at the round of lowest validation loss, and at the round of
    lowest test loss (the oracle's), which nobody can know in practice.
    """
    require_report("fedilc sweep")
    from fedilc.report.sweep_report import write_sweep
    from fedilc.report.table_formats import rich_table
    from fedilc.studies.sweep import Sweep

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
