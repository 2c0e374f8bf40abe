"""Let the ranks find each other after a restart, over a store that still has keys of earlier attempts.

torchrun keeps one store over all restarts, and tells each rank only how often its own machine restarted;
another machine may have another count, so that count cannot name an attempt. Instead, the first rank writes
a random attempt id. The others register under the id they read, each with a nonce, and wait until the first
rank confirms that nonce. The id of an attempt that is over is never confirmed for a new nonce, so the others
read the id again until it is.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from fedilc.errors import FedILCError
from fedilc.gradients.device import find_device
from fedilc.runtimes.torchrun import restart_count

ATTEMPT_KEY = "fedilc/attempt"
_CONFIRMED = "confirmed"
_POLL_SECONDS = 0.02


class RankLostError(FedILCError):
    """Another rank is lost, so that no all-reduce can complete."""


@dataclass(frozen=True)
class RankInfo:
    """What a rank registers: a nonce, the restarts of its machine, and its GPU, if it has one."""

    nonce: str
    restarts: int
    gpu: str | None


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks, as each of them knows it.

    Attributes:
        store: a store that holds keys of this attempt only.
        restarted: whether torchrun has restarted any rank.
        nccl: whether each rank has a GPU that no other has.
    """

    store: Store
    restarted: bool
    nccl: bool


def join_attempt(store: Store, rank: int, size: int, timeout: timedelta) -> Attempt:
    """Wait until all ranks of this attempt are registered."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    deadline = time.monotonic() + timeout.total_seconds()
    info = RankInfo(uuid4().hex, restart_count(), _exclusive_gpu())
    return _lead(store, size, info, deadline) if rank == 0 else _follow(store, rank, info, deadline)


def _exclusive_gpu() -> str | None:
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        return None
    device = find_device("auto")
    return f"{socket.gethostname()} {getattr(torch.cuda.get_device_properties(device), 'uuid', device)}"


def _lead(store: Store, size: int, info: RankInfo, deadline: float) -> Attempt:
    attempt = uuid4().hex
    attempt_store = PrefixStore(f"fedilc/{attempt}", store)
    store.set(ATTEMPT_KEY, attempt)
    ranks = {0: info}
    while len(ranks) < size:
        for rank in range(1, size):
            if rank not in ranks and attempt_store.check([str(rank)]):
                ranks[rank] = RankInfo(**json.loads(attempt_store.get(str(rank))))
        _pause(deadline)
    confirmed = confirmation(ranks)
    nonces = [ranks[rank].nonce for rank in range(size)]
    attempt_store.set(_CONFIRMED, json.dumps({"nonces": nonces, **confirmed}))
    return Attempt(attempt_store, **confirmed)


def confirmation(ranks: Mapping[int, RankInfo]) -> dict[str, bool]:
    """Return what the first rank tells all once every rank is registered."""
    gpus = [info.gpu for info in ranks.values()]
    return {
        "restarted": any(info.restarts > 0 for info in ranks.values()),
        "nccl": None not in gpus and len(set(gpus)) == len(gpus),
    }


def _follow(store: Store, rank: int, info: RankInfo, deadline: float) -> Attempt:
    registered = ""
    while True:
        attempt = store.get(ATTEMPT_KEY).decode() if store.check([ATTEMPT_KEY]) else ""
        attempt_store = PrefixStore(f"fedilc/{attempt}", store)
        if attempt and attempt != registered:
            attempt_store.set(str(rank), json.dumps(asdict(info)))
            registered = attempt
        if attempt and attempt_store.check([_CONFIRMED]):
            confirmed = json.loads(attempt_store.get(_CONFIRMED))
            nonces = confirmed.pop("nonces")
            if rank < len(nonces) and nonces[rank] == info.nonce:
                return Attempt(attempt_store, **confirmed)
        _pause(deadline)


def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise RankLostError("not all ranks started in time; read the others' messages, and start all again")
    time.sleep(_POLL_SECONDS)
