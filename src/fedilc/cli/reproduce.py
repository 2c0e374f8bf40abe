"""`fedilc reproduce`: run the paper's benchmarks, and print its tables beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedilc.cli.console import make_console, say
from fedilc.cli.jobs import EvaluateEvery, Jobs, Rounds, Seeds, Subset, job_changes, run_all
from fedilc.cli.options import Changes, DataDir, not_a_file, use_data_folder
from fedilc.report import require_report


def reproduce(
    benchmark: Annotated[
        str,
        typer.Argument(help="color-mnist, rotated-cifar10, eicu, eicu-demo, eicu-synthetic or color-digits."),
    ] = "color-mnist",
    algorithm: Annotated[
        list[str] | None, typer.Option("--algorithm", "-a", help="Train only this one; may repeat.")
    ] = None,
    seeds: Seeds = 5,
    jobs: Jobs = None,
    rounds: Rounds = None,
    subset: Subset = None,
    evaluate_every: EvaluateEvery = None,
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option(callback=not_a_file, help="Where results go. (default: results/BENCHMARK)")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Train the paper's algorithms with several seeds, and print our numbers beside those of the paper.

    Each table has the round of lowest validation loss, the last round, and the paper's choice (oracle): the
    round of lowest test loss after round 5, which nobody can know in practice.
    Finished runs are kept: interrupt the command and run it again to continue.
    """
    require_report("fedilc reproduce")
    from fedilc.report.campaign.folder import write_campaign
    from fedilc.report.table_formats import rich_table
    from fedilc.studies.reproduce import Plan, score

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
