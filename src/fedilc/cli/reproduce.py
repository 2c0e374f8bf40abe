"""`fedilc reproduce` and `fedilc sweep`: many runs, one table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.cli.console import make_console
from fedilc.cli.data import use_data_folder
from fedilc.cli.options import Changes, DataDir, ExperimentName, as_changes, only_one
from fedilc.errors import ConfigError, StoppedError

if TYPE_CHECKING:
    from rich.console import Console

    from fedilc.studies.jobs import Job, Work
    from fedilc.studies.reproduce import Plan

sweep_app = typer.Typer(help="Run one algorithm over the values of a setting.", no_args_is_help=True)

Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, from 0 on.")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Runs side by side; they share the threads. (default: half the cores)"),
]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds a run, where not as in the paper.")]
Subset = Annotated[
    float | None, typer.Option(help="The share of the training and validation examples to use.")
]
EvaluateEvery = Annotated[int | None, typer.Option(min=1, help="Rounds between evaluations.")]


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
    What is there is continued: interrupt it and call it again as you like.
    """
    from fedilc.report.campaign_files import write_campaign
    from fedilc.report.formats import rich_table
    from fedilc.studies.reproduce import Plan, score

    use_data_folder(data_dir)
    given = [*_changes(rounds, subset, evaluate_every), *(changes or [])]
    plan = Plan.of(benchmark, algorithm or [], seeds, given, out)
    console = make_console()
    console.print(f"{plan.benchmark}: {plan.note}", soft_wrap=True)
    _do(console, plan.jobs(), jobs)
    with console.status("tables and pictures"):
        tables = write_campaign(plan.out, plan.campaign(), score(plan))
    for table in tables:
        console.print(rich_table(table, all_notes=False))
    _say_where(console, plan)


def _say_where(console: Console, plan: Plan) -> None:
    files = "tables.md, tables.tex, tables/*.csv, summary.json, history.csv, figures/*.png"
    console.print(f"results: {plan.out} ({files})", soft_wrap=True, markup=False)


def _changes(rounds: int | None, subset: float | None, evaluate_every: int | None) -> list[str]:
    return as_changes({"rounds": rounds, "data.subset": subset, "evaluate_every": evaluate_every})


def _do(console: Console, jobs: list[Job], side_by_side: int | None) -> None:
    """Run what is not finished, with progress; Ctrl-C ends with a sentence on how to go on."""
    from fedilc.studies.jobs import Work, run_jobs

    work = Work(jobs, side_by_side or max(1, (os.cpu_count() or 2) // 2))
    if not work.waiting:
        return
    try:
        with _progress(console, work) as show:
            run_jobs(work, show)
    except KeyboardInterrupt:
        done = sum(job.finished() for job in jobs)
        raise StoppedError(
            f"stopped with {done} of {len(jobs)} runs finished and {work.done()} of {work.rounds} rounds "
            "done; the same command goes on"
        ) from None


@contextmanager
def _progress(console: Console, work: Work) -> Iterator[Callable[[Work], None]]:
    """Show a bar for the whole, one per current run, and the time left; plain lines without a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
    )
    bars: dict[Job, TaskID] = {}
    said: set[Job] = set()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        whole = progress.add_task("[bold]all rounds", total=work.rounds, note="")

        def show(work: Work) -> None:
            left = work.seconds_left()
            note = "" if left is None else f"about {timedelta(seconds=round(left))} left"
            progress.update(whole, completed=work.done(), note=note)
            for job in work.running:
                if job not in bars:
                    bars[job] = progress.add_task(f"  {job.label}", total=job.settings.rounds, note="")
                progress.update(bars[job], completed=job.done())
            for job in [job for job in bars if job not in work.running and job not in said]:
                said.add(job)
                progress.remove_task(bars[job])
                how = "failed" if job in work.failed else "done"
                console.print(f"{job.label}: {how} ({work.done()} of {work.rounds} rounds; {note})")

        yield show


@sweep_app.command("lambda")
def lambda_(
    experiment: ExperimentName = "color-digits",
    values: Annotated[str, typer.Option(help="Values of lambda, with commas.")] = "0,0.01,0.1,1,10,100",
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", "-a", help="One with a penalty. (default: fishr-inter-geo)"),
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
    """Train with several weights of the penalty, and choose one by the silos' validation loss.

    The test site's loss is shown beside it, also at the oracle's round: the round of lowest test loss, which
    nobody can know in practice.
    """
    from fedilc.report.formats import rich_table
    from fedilc.report.sweep_report import write_sweep
    from fedilc.studies.sweep import Sweep

    use_data_folder(data_dir)
    given = [*_changes(rounds, subset, evaluate_every), *(changes or [])]
    name = only_one(algorithm, "a sweep") or "fishr-inter-geo"
    sweep = Sweep.of(experiment, name, _values(values), seeds, given, out)
    console = make_console()
    _do(console, sweep.jobs(), jobs)
    console.print(rich_table(write_sweep(sweep)))
    files = "tables.md, tables.tex, tables/*.csv, lambda.png"
    console.print(f"results: {sweep.out} ({files})", markup=False, soft_wrap=True)


def _values(text: str) -> list[float]:
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError as error:
        raise ConfigError(f"--values {text!r} is not a list of numbers like 0,0.1,1") from error
    if found[0] < 0:
        raise ConfigError(f"--values {text!r} has a negative lambda; give 0 or more")
    return found
