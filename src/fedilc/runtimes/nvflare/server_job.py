"""The server's side of a job: the run put together over its sites, in a folder that outlives the job."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fedilc.config import parse_experiment
from fedilc.errors import ConfigError
from fedilc.federation import Record
from fedilc.runtimes.nvflare.local_config import ServerConfig
from fedilc.runtimes.nvflare.runtime import NVFlareRuntime
from fedilc.runtimes.remote.builders import plan_of
from fedilc.runtimes.remote.job import Job, coordinate
from fedilc.runtimes.remote.manifest import Wire
from fedilc.training.callbacks import Callback, Run
from fedilc.training.result import Result


@dataclass(frozen=True)
class Place:
    """Where things are on the server: its local folder, and the folder of this run."""

    local: Path
    run: Path

    @classmethod
    def of(cls, workspace: Path, local: Path, config: ServerConfig, out: str) -> Place:
        """A run's folder below that of all runs; a job cannot name one elsewhere."""
        return cls(local, workspace / config.runs / require_inside(out))


def require_inside(out: str) -> PurePosixPath:
    """A run's name, if it cannot lead out of the folder of runs.

    >>> require_inside("hospitals/first").name
    'first'
    """
    inside = PurePosixPath(out)
    if inside.is_absolute() or ".." in inside.parts or not inside.parts:
        raise ConfigError(
            f"out={out!r} is not a name below the server's folder of runs; the server's own "
            "local/fedilc.json says where that is"
        )
    return inside


class _Tell(Callback):
    """A line in the job's log when it begins, and one a round."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell

    def on_start(self, run: Run) -> None:
        done = len(run.history)
        self.tell(f"the run in {run.out} goes on after round {done}" if done else f"the run is in {run.out}")

    def on_round(self, run: Run, record: Record) -> None:
        self.tell(f"round {record['round']} of {run.rounds}: train loss {record['train_loss']:.6g}")


def job_of(values: Mapping[str, Any], place: Place, builder: str | None, wire: Wire = "exact") -> Job:
    """Return what is to be trained, from an experiment's settings as plain values."""
    settings = parse_experiment(values)
    plan = plan_of(settings, place.local, builder)
    return Job(settings.name, settings.algorithm, settings, plan, wire)


def run_job(job: Job, runtime: NVFlareRuntime, place: Place, tell: Callable[[str], None]) -> Result:
    """Train over a job's sites; continue the run that the folder holds, if it is this one."""
    return coordinate(job, job.training(runtime), "nvflare", place.run, [_Tell(tell)])


def copy_results(run: Path, job: Path) -> None:
    """Put the run's files where NVIDIA FLARE collects a job's results, so that an admin can download them."""
    if not run.is_dir():
        return
    job.mkdir(parents=True, exist_ok=True)
    for file in sorted(run.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            shutil.copy2(file, job / file.name)
