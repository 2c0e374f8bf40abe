"""Progress in the terminal: a bar for one run, and bars for many jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from fedilc.federation import Record
from fedilc.progress import seldom, showing
from fedilc.studies.worker_pool import Job, Work
from fedilc.training.callbacks import Callback, Run

_LOSSES = {"train_loss": "train", "validation_loss": "val", "test_loss": "OOD"}


def _bars(console: Console, *last: ProgressColumn) -> Progress:
    """Return bars with a note after each; they are hidden if output is no terminal."""
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None, table_column=Column(min_width=4, ratio=1)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
        *last,
        console=console,
        disable=not console.is_terminal,
    )


class ProgressBar(Callback):
    """Show round, losses and time left; one line per fifth of the rounds if output is not a terminal."""

    def __init__(self, console: Console, label: str) -> None:
        self.console = console
        self.label = label
        left = TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True))
        self.progress = _bars(console, left)
        self.task: TaskID | None = None
        self._seen: dict[str, tuple[int, float]] = {}

    def on_start(self, run: Run) -> None:
        """Start the bar at the rounds that are done."""
        done = len(run.history)
        if not self.console.is_terminal:
            if done:
                self.console.print(f"{self.label}: continuing after round {done}")
            return
        self.progress.start()
        self.task = self.progress.add_task(self.label, total=run.rounds, completed=done, note="")

    def on_round(self, run: Run, record: Record) -> None:
        """Show the losses of a round."""
        for key, name in _LOSSES.items():
            if record.get(key) is not None:
                self._seen[name] = record["round"], record[key]
        losses = _describe(self._seen, record["round"])
        if self.task is not None:
            self.progress.update(self.task, completed=record["round"], note=losses)
        elif record["round"] % max(1, run.rounds // 5) == 0:
            self.console.print(f"{self.label}: round {record['round']}/{run.rounds}  {losses}")

    def on_end(self, _run: Run) -> None:
        """Stop the bar."""
        self.close()

    def close(self) -> None:
        """Stop the bar as it is, even if the run did not end."""
        if self.task is not None:
            self.progress.stop()
            self.task = None


def _describe(seen: Mapping[str, tuple[int, float]], now: int) -> str:
    """Return the latest losses as text; those of an earlier round follow its number.

    >>> _describe({"train": (12, 0.5), "val": (10, 0.25), "OOD": (10, 0.75)}, 12)
    'train 0.500  round 10: val 0.250  OOD 0.750'
    """
    words, at = [], now
    for name, (number, value) in sorted(seen.items(), key=lambda one: -one[1][0]):
        before = "" if number == at else f"round {number}: "
        words.append(f"{before}{name} {value:.3f}" if value < 1e4 else f"{before}{name} {value:.3g}")
        at = number
    return "  ".join(words)


@contextmanager
def work_bars(console: Console) -> Iterator[Callable[[Work], None]]:
    """Yield what shows the state of many jobs: a bar for all and one per job under way, with the time left.

    Work that this process does itself, such as scores, has the first bar afterwards. Without a terminal it is
    a line per tenth of the jobs, and every few seconds of the rest. A job that fails is named at once.
    """
    with _bars(console) as bars:
        whole = bars.add_task("", total=None, note="")
        by_job: dict[Job, TaskID] = {}
        said, named = 0, set[Job]()
        lines = seldom(lambda line: None if console.is_terminal else console.print(line, markup=False))

        def show(work: Work) -> None:
            nonlocal said
            done, total, note = work.done(), work.total(), _time_left(work.seconds_left())
            bars.update(whole, description=work.label, total=total, completed=done, note=note)
            for job in [job for job in by_job if job not in work.running]:
                bars.remove_task(by_job.pop(job))
            for job in [job for job in work.running if job.cost > 1]:
                if job not in by_job:
                    by_job[job] = bars.add_task(f"  {job.label}", total=job.cost, note="")
                bars.update(by_job[job], completed=min(job.cost, job.done()))
            for job in [job for job in work.failed if job not in named]:
                named.add(job)
                console.print(f"{job.label} failed: {work.failed[job]}", markup=False, soft_wrap=True)
            tenth = 10 * done // max(1, total)
            if not console.is_terminal and tenth > said:
                said = tenth
                console.print(f"{work.label}: {done} of {total} {work.unit}  {note}".rstrip())

        def stage(what: str, done: int, total: int) -> None:
            bars.update(whole, description=what, total=total, completed=done, note="")
            lines(what, done, total)

        with showing(stage):
            yield show


def _time_left(seconds: float | None) -> str:
    """Return a note on the time left, empty if it is not known.

    >>> _time_left(75.2), _time_left(None)
    ('about 0:01:15 left', '')
    """
    return "" if seconds is None else f"about {timedelta(seconds=round(seconds))} left"
