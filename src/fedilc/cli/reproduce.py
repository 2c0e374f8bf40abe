"""`fedilc reproduce`: run the paper's benchmarks, and print its tables beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedilc.cli.console import make_console
from fedilc.cli.jobs import EvaluateEvery, Jobs, Rounds, Seeds, Subset, job_changes, run_all
from fedilc.cli.options import Changes, DataDir, use_data_folder


def reproduce(
    benchmark: Annotated[
        str,
        typer.Argument(help="color-mnist, rotated-cifar10, eicu, eicu-demo, eicu-synthetic or color-digits."),
    ] = "color-mnist",
    algorithm: Annotated[
        list[str] | None, typer.Option("--algorithm", "-a", help="Only this one; may repeat.")
    ] = None,
    seeds: Seeds = 5,
    jobs: Jobs = None,
    rounds: Rounds = None,
    subset: Subset = None,
    evaluate_every: EvaluateEvery = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Where results go. (default: results/BENCHMARK)")] = None,
    data_dir: DataDir = None,
) -> None:
    """Run the paper's algorithms over seeds, and print its tables with ours beside the paper's numbers.

    Rounds are chosen by validation, as the last one, and as in the paper by the oracle: the round of lowest
    test loss after round 5, which nobody can know in practice.
    Finished runs are kept: interrupt the command and run it again to continue.
    """
    from fedilc.report.campaign.folder import write_campaign
    from fedilc.report.table_formats import rich_table
    from fedilc.studies.reproduce import Plan, score

    use_data_folder(data_dir)
    given = [*job_changes(rounds, subset, evaluate_every), *(changes or [])]
    plan = Plan.of(benchmark, algorithm or [], seeds, given, out)
    console = make_console()
    console.print(f"{plan.benchmark}: {plan.note}", soft_wrap=True)
    run_all(console, plan.jobs(), jobs)
    with console.status("tables and pictures"):
        tables = write_campaign(plan.out, plan.campaign(), score(plan))
    for table in tables:
        console.print(rich_table(table, all_notes=False))
    files = "tables.md, tables.tex, tables/*.csv, summary.json, history.csv, figures/*.png"
    console.print(f"results: {plan.out} ({files})", soft_wrap=True, markup=False)
