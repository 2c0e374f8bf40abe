"""The server's side of a job: a run over its sites, in a folder that outlives the job."""

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
class ServerFolders:
    """The server's `local` folder, and the folder of this run."""

    local: Path
    run: Path

    @classmethod
    def of(cls, workspace: Path, local: Path, config: ServerConfig, out: str) -> ServerFolders:
        """Return the folders of a run, which a job can only name inside the server's folder of runs."""
        return cls(local, workspace / config.runs / require_inside(out))


def require_inside(out: str) -> PurePosixPath:
    """Return a run's name as a path; raise if it leads out of the folder of runs.

    >>> require_inside("hospitals/first").name
    'first'
    """
    inside = PurePosixPath(out)
    if inside.is_absolute() or ".." in inside.parts or not inside.parts:
        raise ConfigError(
            f"out={out!r} is not a name inside the server's folder of runs; the server's own "
            "local/fedilc.json says where that folder is"
        )
    return inside


class _RoundLog(Callback):
    """A line in the job's log at the start, and one per round."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self.log = log

    def on_start(self, run: Run) -> None:
        done = len(run.history)
        self.log(f"the run in {run.out} continues after round {done}" if done else f"the run is in {run.out}")

    def on_round(self, run: Run, record: Record) -> None:
        self.log(f"round {record['round']} of {run.rounds}: train loss {record['train_loss']:.6g}")


def job_of(
    values: Mapping[str, Any], folders: ServerFolders, builder: str | None, wire: Wire = "exact"
) -> Job:
    """Return the job of an experiment's settings, given as plain values."""
    settings = parse_experiment(values)
    plan = plan_of(settings, folders.local, builder)
    return Job(settings.name, settings.algorithm, settings, plan, wire)


def run_job(job: Job, runtime: NVFlareRuntime, folders: ServerFolders, log: Callable[[str], None]) -> Result:
    """Train over a job's sites; continue the run in the folder, if it is this one."""
    return coordinate(job, job.training(runtime), "nvflare", folders.run, [_RoundLog(log)])


def copy_results(run: Path, job: Path) -> None:
    """Copy the run's files to where NVIDIA FLARE collects a job's results, for an admin to download."""
    if not run.is_dir():
        return
    job.mkdir(parents=True, exist_ok=True)
    for file in sorted(run.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            shutil.copy2(file, job / file.name)
