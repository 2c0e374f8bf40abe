"""Read what torchrun, or SLURM's srun, says about this process, and recognise a launch after a restart.

`rendezvous.py` then lets the ranks find each other, and `distributed.py` trains over them.

A restart continues the run of its own launch and no older one. torchrun's environment does not say which run
folder that is, so the first rank writes the launch's name into the folder in which it begins a run.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_LAUNCH_FILE = ".launch"


def restart_count() -> int:
    """Return how many times torchrun has restarted the processes of this machine."""
    return int(os.environ.get(RESTARTS, "0"))


def launch_name() -> str | None:
    """Return a name that all restarts of one torchrun share; None if torchrun did not start this process.

    It is the job's id (`--rdzv-id`), if it has one. A job without an id never moves to another machine, so
    the process of torchrun itself identifies it.
    """
    job = os.environ.get("TORCHELASTIC_RUN_ID")
    if job != "none":
        return job
    parent = os.getppid()
    return f"{socket.gethostname()} {parent} {_start_time(parent)}"


def _start_time(pid: int) -> str:
    """Return when a process started, if the system says so: PIDs are reused."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def claim(folder: Path) -> None:
    """Write the name of this launch into its run folder, for a restart; do nothing without torchrun."""
    name = launch_name()
    if name is None:
        return
    # If the folder is not writable, the run itself reports it.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _LAUNCH_FILE).write_text(name)


def is_claimed(folder: Path) -> bool:
    """Return whether the folder has the name of this launch."""
    try:
        return (folder / _LAUNCH_FILE).read_text() == launch_name()
    except OSError:
        return False


def release(folder: Path) -> None:
    """Remove the claim of an earlier launch of the same name, which a restart would take for its own."""
    if is_claimed(folder):
        (folder / _LAUNCH_FILE).unlink(missing_ok=True)


def started_as_group() -> bool:
    """Return whether torchrun or srun started this process as one of several.

    A command in an allocation's shell or batch script has SLURM's variables too, but is alone.
    """
    in_script = os.environ.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in os.environ
    environment = os.environ if in_script else with_slurm(os.environ)
    return int(environment.get("WORLD_SIZE", "1")) > 1


def with_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the variables that torchrun would have set, taken from SLURM's."""
    filled = dict(environment)
    if "SLURM_PROCID" in filled and "RANK" not in filled:
        filled["RANK"] = filled["SLURM_PROCID"]
        tasks = filled.get("SLURM_STEP_NUM_TASKS", filled.get("SLURM_NTASKS", "1"))
        filled.setdefault("WORLD_SIZE", tasks)
        filled.setdefault("MASTER_ADDR", first_host(filled.get("SLURM_STEP_NODELIST", "localhost")))
        step = int(filled.get("SLURM_JOB_ID", "0")) + 131 * int(filled.get("SLURM_STEP_ID", "0"))
        filled.setdefault("MASTER_PORT", str(20_000 + step % 20_000))
    return filled


def first_host(nodes: str) -> str:
    """Return the first host of a SLURM node list.

    >>> first_host("node[07-09,12],other3"), first_host("gpu1,gpu2")
    ('node07', 'gpu1')
    """
    match = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    return "localhost" if match is None else match[1] + (match[2] or "")
