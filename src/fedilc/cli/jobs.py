"""Options of commands that make many runs, and the function that makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.cli.console import drawn
from fedilc.cli.options import as_changes

if TYPE_CHECKING:
    from rich.console import Console

    from fedilc.studies.jobs import RunJob

Seeds = Annotated[int, typer.Option(min=1, help="The number of seeds, starting from 0.")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="How many runs at a time, which share the threads. (default: half the cores)"),
]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds per run. (default: as in the experiment)")]
Subset = Annotated[
    float | None, typer.Option(help="The share of the training and validation examples to use.")
]
EvaluateEvery = Annotated[int | None, typer.Option(min=1, help="Evaluate after every this many rounds.")]


def job_changes(rounds: int | None, subset: float | None, evaluate_every: int | None) -> list[str]:
    """Return these options in the form of `--set`."""
    return as_changes({"rounds": rounds, "data.subset": subset, "evaluate_every": evaluate_every})


def run_all(console: Console, jobs: list[RunJob], at_a_time: int | None) -> None:
    """Do the runs that are not finished, with progress, and draw the losses of each."""
    from fedilc.report.plots import loss_picture
    from fedilc.report.progress import work_bars
    from fedilc.storage.run_folder import RunFolder
    from fedilc.studies.jobs import run_jobs
    from fedilc.studies.worker_pool import cores

    with work_bars(console) as show:
        done_now = run_jobs(jobs, at_a_time or max(1, cores() // 2), show)
    for job in jobs:
        picture = job.folder / "loss.png"
        if job in done_now or not picture.exists():
            title = f"{job.settings.name} · {job.settings.algorithm}"
            drawn(loss_picture, picture, title, RunFolder(job.folder).history())
