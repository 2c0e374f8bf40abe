"""Let the ranks find each other after a restart, over a store that still has keys of earlier attempts.

`torchrun.py` reads which rank this process is and which run it continues; `distributed.py` trains over the
ranks once they are connected.

torchrun keeps one store over all restarts, and tells each rank only how often its own machine restarted;
another machine may have another count, so that count cannot name an attempt. Instead, every rank writes a
nonce, and the nonces of all ranks together name the attempt. A rank that still reads the nonce of an attempt
that is over gets a name that no other rank has, and reads again.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from fedilc.errors import FedILCError
from fedilc.gradients import find_device
from fedilc.runtimes.torchrun import restart_count

_POLL_SECONDS = 0.02


class RankLostError(FedILCError):
    """Another rank is lost, so that no all-reduce can complete."""


@dataclass(frozen=True)
class RankInfo:
    """What a rank tells the others: a nonce, the restarts of its machine, and its GPU, if it has one."""

    nonce: str
    restarts: int
    gpu: str | None


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks: a store that holds keys of this attempt only, and what each rank told."""

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
    """Wait until all ranks of this attempt know of each other."""
    # torchrun's prefix has the number of restarts of this machine, which differs between machines.
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    store, own, everyone = PrefixStore("fedilc", store), str(rank), [str(other) for other in range(size)]
    store.set(own, json.dumps(asdict(RankInfo(uuid4().hex, restart_count(), _exclusive_gpu()))))
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        if store.check(everyone):
            # Whoever joins under this name has read these very nonces, and each rank writes its own before it
            # reads. So if all ranks join, no nonce is of an earlier attempt: the rank that it belongs to has
            # written a newer one since, and reads that.
            infos = store.multi_get(everyone)
            attempt = PrefixStore(hashlib.sha256(b"".join(infos)).hexdigest(), store)
            attempt.set(own, "joined")
            if attempt.check(everyone):
                return Attempt(attempt, [RankInfo(**json.loads(info)) for info in infos])
        time.sleep(_POLL_SECONDS)
    raise RankLostError("not all ranks started in time; read the others' messages, and start all again")


def _exclusive_gpu() -> str | None:
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        return None
    device = find_device("auto")
    return f"{socket.gethostname()} {getattr(torch.cuda.get_device_properties(device), 'uuid', device)}"
