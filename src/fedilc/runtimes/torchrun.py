"""Ranks: what torchrun or SLURM says about this process, and how ranks find each other after a restart.

First, which run a restarted launch continues; then the environment of SLURM; then how all ranks meet
(`join_attempt`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from fedilc.errors import FedILCError
from fedilc.gradients import find_device

RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_LAUNCH_FILE = ".launch"
_POLL_SECONDS = 0.02


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
    # The name of the process, in brackets, may contain spaces and brackets: count fields after the last one.
    return stat.rpartition(")")[2].split()[19]


def claim(folder: Path) -> None:
    """Write the name of this launch into its run folder, so that a restart continues it.

    Do nothing without torchrun.
    """
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
    """Remove the claim of an earlier launch of the same name, which a restart would take for its own.

    A job id (`--rdzv-id`) may be used again: without this, a restart of the second job would continue the run
    of the first.
    """
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
        # All ranks of a step compute the same port; jobs and steps that share a machine rarely do.
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


class RankLostError(FedILCError):
    """Another rank is lost, and no all-reduce can complete."""


@dataclass(frozen=True)
class RankInfo:
    """What a rank tells the others: a nonce, the restarts of its machine, and its GPU, if it has one."""

    nonce: str
    restarts: int
    gpu: str | None


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks: a store with the keys of this attempt only, and what each rank told."""

    store: Store
    ranks: Sequence[RankInfo]

    @property
    def restarted(self) -> bool:
        """Return whether torchrun has restarted any rank."""
        return any(info.restarts > 0 for info in self.ranks)

    @property
    def nccl(self) -> bool:
        """Return whether each rank has a GPU that no other has."""
        gpus = [info.gpu for info in self.ranks]
        return None not in gpus and len(set(gpus)) == len(gpus)


def join_attempt(store: Store, rank: int, size: int, timeout: timedelta) -> Attempt:
    """Wait until all ranks of this attempt know each other.

    The store outlives an attempt, so that a rank may read what a rank of the attempt before has written.
    """
    # torchrun's prefix has the number of restarts of this machine, which differs between machines.
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    store, own, everyone = PrefixStore("fedilc", store), str(rank), [str(other) for other in range(size)]
    store.set(own, json.dumps(asdict(RankInfo(uuid4().hex, restart_count(), _exclusive_gpu()))))
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        if store.check(everyone):
            # The name of the attempt is a hash of all nonces, so ranks that join under it have read the same
            # nonces. A rank writes its new nonce before it reads, so it never joins under a name with an old
            # nonce of its own. Hence, if all ranks join, every nonce is from this attempt.
            infos = store.multi_get(everyone)
            attempt = PrefixStore(hashlib.sha256(b"".join(infos)).hexdigest(), store)
            attempt.set(own, "joined")
            if attempt.check(everyone):
                return Attempt(attempt, [RankInfo(**json.loads(info)) for info in infos])
        time.sleep(_POLL_SECONDS)
    raise RankLostError(
        "not all ranks started in time; read the messages of the others, and start all ranks again"
    )


def _exclusive_gpu() -> str | None:
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        return None
    device = find_device("auto")
    return f"{socket.gethostname()} {getattr(torch.cuda.get_device_properties(device), 'uuid', device)}"
