"""A progress bar for a run in the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from fedilc.federation import Record
from fedilc.training.callbacks import Callback, Run

_LOSSES = {"train_loss": "train", "validation_loss": "val", "test_loss": "OOD"}


class ProgressBar(Callback):
    """Show round, losses and time left; one line per fifth of the rounds if output is not a terminal."""

    def __init__(self, console: Console, label: str) -> None:
        self.console = console
        self.label = label
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None, table_column=Column(min_width=4, ratio=1)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[losses]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            console=console,
        )
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
        self.task = self.progress.add_task(self.label, total=run.rounds, completed=done, losses="")

    def on_round(self, run: Run, record: Record) -> None:
        """Show the losses of a round."""
        for key, name in _LOSSES.items():
            if record.get(key) is not None:
                self._seen[name] = record["round"], record[key]
        losses = _describe(self._seen, record["round"])
        if self.task is not None:
            self.progress.update(self.task, completed=record["round"], losses=losses)
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
