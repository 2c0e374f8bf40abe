"""Options and progress of the commands that make many runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.cli.options import as_changes
from fedilc.errors import StoppedError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from fedilc.studies.jobs import Job, Work

Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, starting from 0.")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="How many runs at a time; they share the threads. (default: half the cores)"),
]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds per run. (default: as in the experiment)")]
Subset = Annotated[
    float | None, typer.Option(help="The share of the training and validation examples to use.")
]
EvaluateEvery = Annotated[
    int | None, typer.Option(min=1, help="How many rounds from one evaluation to the next.")
]


def job_changes(rounds: int | None, subset: float | None, evaluate_every: int | None) -> list[str]:
    """Return these options in the form of `--set`."""
    return as_changes({"rounds": rounds, "data.subset": subset, "evaluate_every": evaluate_every})


def run_all(console: Console, jobs: list[Job], side_by_side: int | None) -> None:
    """Run what is not finished, and show progress; Ctrl-C ends with a sentence on how to continue."""
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
            "done; run the same command to continue"
        ) from None


def noted_bars(console: Console) -> Progress:
    """Return progress bars with a note at the end of each; they are hidden if output is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    note = TextColumn("{task.fields[note]}")
    return Progress(*columns, note, console=console, disable=not console.is_terminal)


def time_left(seconds: float | None) -> str:
    """Return a note on the time left, empty if it is not known.

    >>> time_left(75.2), time_left(None)
    ('about 0:01:15 left', '')
    """
    return "" if seconds is None else f"about {timedelta(seconds=round(seconds))} left"


@contextmanager
def _progress(console: Console, work: Work) -> Iterator[Callable[[Work], None]]:
    """Show a bar for the whole, one per current run, and the time left; plain lines without a terminal."""
    bars: dict[Job, TaskID] = {}
    reported: set[Job] = set()
    with noted_bars(console) as progress:
        whole = progress.add_task("[bold]all rounds", total=work.rounds, note="")

        def show(work: Work) -> None:
            note = time_left(work.seconds_left())
            progress.update(whole, completed=work.done(), note=note)
            for job in work.running:
                if job not in bars:
                    bars[job] = progress.add_task(f"  {job.label}", total=job.settings.rounds, note="")
                progress.update(bars[job], completed=job.done())
            for job in [job for job in bars if job not in work.running and job not in reported]:
                reported.add(job)
                progress.remove_task(bars[job])
                how = "failed" if job in work.failed else "done"
                console.print(f"{job.label}: {how} ({work.done()} of {work.rounds} rounds; {note})")

        yield show
