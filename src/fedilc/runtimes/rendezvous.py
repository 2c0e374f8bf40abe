"""How ranks find each other, over a store that may still hold what an attempt before this one left.

torchrun keeps one store over all restarts, and tells each rank how often its own machine began again, which
another machine may count otherwise. So ranks do not meet under that number: the first writes down a word of
its own, the others check in under the word they read, each with another nonce, and are answered. A word of an
attempt that is over gets no such answer, and is read again.
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
from fedilc.runtimes.torchrun import attempt

_WORD = "fedilc/word"
_OPEN = "open"
_PAUSE = 0.02


class RankLostError(FedILCError):
    """Another rank is gone, so that no all-reduce can be completed."""


@dataclass(frozen=True)
class Present:
    """What a rank says when it comes: how often its machine began again, and its GPU, if it has one."""

    nonce: str
    attempt: int
    gpu: str | None

    @classmethod
    def here(cls) -> Present:
        """What this rank says."""
        return cls(uuid4().hex, attempt(), _own_gpu())


@dataclass(frozen=True)
class Meeting:
    """What all ranks know once they have met.

    Attributes:
        store: where nothing is from another attempt.
        restarted: whether torchrun has started any of them again.
        nccl: whether each has a GPU that no other has.
    """

    store: Store
    restarted: bool
    nccl: bool


def _own_gpu() -> str | None:
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        return None
    device = find_device("auto")
    return f"{socket.gethostname()} {getattr(torch.cuda.get_device_properties(device), 'uuid', device)}"


def meet(store: Store, rank: int, size: int, patience: timedelta) -> Meeting:
    """Wait until all ranks of this attempt are there."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    deadline = time.monotonic() + patience.total_seconds()
    mine = Present.here()
    return _invite(store, size, mine, deadline) if rank == 0 else _come(store, rank, mine, deadline)


def _invite(store: Store, size: int, mine: Present, deadline: float) -> Meeting:
    word = uuid4().hex
    room = PrefixStore(f"fedilc/{word}", store)
    store.set(_WORD, word)
    there = {0: mine}
    while len(there) < size:
        for rank in range(1, size):
            if rank not in there and room.check([str(rank)]):
                there[rank] = Present(**json.loads(room.get(str(rank))))
        _pause(deadline)
    told = decided(there)
    room.set(_OPEN, json.dumps(told))
    return Meeting(room, bool(told["restarted"]), bool(told["nccl"]))


def decided(there: Mapping[int, Present]) -> dict[str, object]:
    """What the first rank tells all, once it knows who is there."""
    gpus = [present.gpu for present in there.values()]
    return {
        "nonces": [there[rank].nonce for rank in range(len(there))],
        "restarted": any(present.attempt > 0 for present in there.values()),
        "nccl": None not in gpus and len(set(gpus)) == len(gpus),
    }


def _come(store: Store, rank: int, mine: Present, deadline: float) -> Meeting:
    known = ""
    while True:
        word = store.get(_WORD).decode() if store.check([_WORD]) else ""
        room = PrefixStore(f"fedilc/{word}", store)
        if word and word != known:
            room.set(str(rank), json.dumps(asdict(mine)))
            known = word
        if word and room.check([_OPEN]):
            told = json.loads(room.get(_OPEN))
            if rank < len(told["nonces"]) and told["nonces"][rank] == mine.nonce:
                return Meeting(room, told["restarted"], told["nccl"])
        _pause(deadline)


def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise RankLostError("not all ranks came in time; see what the others say, and start them again")
    time.sleep(_PAUSE)
