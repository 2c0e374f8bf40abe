"""A run over Flower's grid: the same training as everywhere, with Flower's nodes to ask."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedilc.federation import Record
from fedilc.runtimes.flower.engine import logger
from fedilc.runtimes.flower.runtime import FlowerRuntime
from fedilc.runtimes.remote.job import Job, coordinate
from fedilc.training.callbacks import Callback, Run
from fedilc.training.result import Result

if TYPE_CHECKING:
    from fedilc.runtimes.flower.nodes import Roll

_SHOWN = {"train_loss": "train loss", "validation_loss": "validation loss", "test_loss": "OOD loss"}


class Say(Callback):
    """A line of the log a round."""

    def on_start(self, run: Run) -> None:
        self._since = time.perf_counter()
        if run.history:
            logger.info("fedilc: going on after round %d of %d", len(run.history), run.rounds)

    def on_round(self, run: Run, record: Record) -> None:
        now = time.perf_counter()
        numbers = [f"{word} {record[key]:.4f}" for key, word in _SHOWN.items() if record.get(key) is not None]
        logger.info(
            "fedilc: round %d of %d: %s, %.1f s",
            record["round"],
            run.rounds,
            ", ".join(numbers),
            now - self._since,
        )
        self._since = now


def run_job(roll: Roll, job: Job, out: Path | None, callbacks: Sequence[Callback] = ()) -> Result:
    """Train over the nodes of a roll; continues the run that `out` holds, if it is this one."""
    runtime = FlowerRuntime(roll, job.manifest, job.needed)
    return coordinate(job, job.training(runtime), "flower", out, [Say(), *callbacks])
