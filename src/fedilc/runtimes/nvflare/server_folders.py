"""Name the server's folders for a run, which outlives the job, and copy its files to the job's results."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedilc.errors import ConfigError
from fedilc.runtimes.nvflare.local_config import ServerConfig


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


def copy_results(run: Path, job: Path) -> None:
    """Copy the run's files to where NVIDIA FLARE collects a job's results, for an admin to download."""
    if not run.is_dir():
        return
    job.mkdir(parents=True, exist_ok=True)
    for file in sorted(run.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            shutil.copy2(file, job / file.name)
