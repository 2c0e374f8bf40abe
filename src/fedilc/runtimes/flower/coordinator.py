"""A run over Flower's grid: the same training as everywhere, with Flower's nodes to ask."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedilc.callbacks import Callback, Run
from fedilc.config import Options
from fedilc.federation import Record, RunFolder, Runtime, Task
from fedilc.runtimes.flower.engine import logger
from fedilc.runtimes.flower.runtime import FlowerRuntime
from fedilc.runtimes.remote.manifest import Wire, make_manifest
from fedilc.runtimes.remote.setting_up import Plan
from fedilc.training import Result, Training

if TYPE_CHECKING:
    from fedilc.runtimes.flower.roll import Roll

_SHOWN = {"train_loss": "train loss", "validation_loss": "validation loss", "test_loss": "OOD loss"}


@dataclass(frozen=True)
class Job:
    """What is to be trained, and how."""

    name: str
    algorithm: str
    options: Options
    plan: Plan
    wire: Wire = "exact"


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


def coordinate(roll: Roll, job: Job, out: Path | None, callbacks: Sequence[Callback] = ()) -> Result:
    """Train over the nodes of a roll; continues the run that `out` holds, if it is this one."""

    def connect(task: Task, trained: nn.Module, outputs: int) -> Runtime:
        silos, plan, options = job.plan.outline.silos, job.plan, job.options
        spec = plan.spec.model_copy(update={"outputs": outputs})
        manifest = make_manifest(
            job.name, job.algorithm, task, options, silos, trained, spec, job.wire, plan.columns
        )
        return FlowerRuntime(roll, manifest, options.min_silos or options.silos_per_round or len(silos))

    training = Training(job.plan.outline, job.plan.model, job.algorithm, job.options, connect)
    facts: dict[str, Any] = {"experiment": job.name, "wire": job.wire, "runtime": "flower"}
    resume = out is not None and RunFolder(out).settings_file.exists()
    return training.run([Say(), *callbacks], out, resume, facts)
