"""A progress bar for a run in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedilc.callbacks import Callback, Run
from fedilc.federation import Record

_LOSSES = {"train_loss": "train", "validation_loss": "val", "test_loss": "OOD"}


class ProgressBar(Callback):
    """Shows round, losses and time left; where output is no terminal, one line now and then."""

    def __init__(self, console: Console, label: str) -> None:
        self.console = console
        self.label = label
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[losses]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task: TaskID | None = None
        self._seen = ""

    def on_start(self, run: Run) -> None:
        done = len(run.history)
        if not self.console.is_terminal:
            if done:
                self.console.print(f"{self.label}: going on after round {done}")
            return
        self.progress.start()
        self.task = self.progress.add_task(self.label, total=run.rounds, completed=done, losses="")

    def on_round(self, run: Run, record: Record) -> None:
        shown = [f"{name} {record[key]:.3f}" for key, name in _LOSSES.items() if record.get(key) is not None]
        self._seen = "  ".join(shown) if "test_loss" in record or "validation_loss" in record else self._seen
        if self.task is not None:
            self.progress.update(self.task, completed=record["round"], losses=self._seen)
        elif record["round"] % max(1, run.rounds // 5) == 0:
            self.console.print(f"{self.label}: round {record['round']}/{run.rounds}  {self._seen}")

    def on_end(self, run: Run) -> None:  # noqa: ARG002
        self.close()

    def close(self) -> None:
        """Leave the bar as it stands, also where the run did not end."""
        if self.task is not None:
            self.progress.stop()
            self.task = None
