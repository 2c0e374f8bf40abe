"""Silos on many ranks of `torch.distributed`: each accumulates its own, and sums meet in an all-reduce.

Every rank runs the same server. In each step it asks its own silos and adds up their answers with the same
aggregator; one all-reduce then gives every rank the sums of all, from which all take the same step. No rank
sees another's examples, nor the gradient of another rank's silo. Only tensors travel, never objects.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from heapq import heappop, heappush
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from fedilc.aggregation import Aggregator, Sums, add_up
from fedilc.data import Federation
from fedilc.data.silo_store import SiloStore
from fedilc.errors import ConfigError, FedILCError
from fedilc.federation.client import Metrics
from fedilc.federation.messages import Reply, Request
from fedilc.federation.program import Program
from fedilc.federation.runtime import Facts
from fedilc.runtimes.local import LocalRuntime
from fedilc.runtimes.rendezvous import Meeting, RankLostError, meet
from fedilc.runtimes.torchrun import attempt

PATIENCE = timedelta(minutes=30)
MEETING = timedelta(minutes=10)
QUIET = 15.0
_ENDED = "ended"
JSONObject = TypeVar("JSONObject", bound=Mapping[str, object])
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Group:
    """The ranks of a run; alone, if it was not started as one of several.

    `restarted` says whether torchrun has started any of them again.
    """

    rank: int = 0
    size: int = 1
    restarted: bool = False

    @classmethod
    def current(cls) -> Group:
        """The group this process has joined, if any."""
        joined = dist.is_available() and dist.is_initialized()
        return cls(dist.get_rank(), dist.get_world_size()) if joined else cls()

    @property
    def first(self) -> bool:
        """Whether this rank writes and reports."""
        return self.rank == 0

    def share(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """This rank's silos: the largest first, each to the rank that has the least, in their own order."""
        load: list[tuple[int, int]] = [(0, rank) for rank in range(self.size)]
        mine = set()
        for name in sorted(sizes, key=lambda name: -sizes[name]):
            examples, rank = heappop(load)
            heappush(load, (examples + sizes[name], rank))
            if rank == self.rank:
                mine.add(name)
        return tuple(name for name in sizes if name in mine)

    def add(self, tensor: Tensor) -> None:
        """The sum over ranks, in place."""
        if self.size > 1:
            with _named_loss():
                dist.all_reduce(tensor)

    def take_largest(self, tensor: Tensor) -> None:
        """The largest of each number over ranks, in place."""
        if self.size > 1:
            with _named_loss():
                dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def send_from_first(self, tensor: Tensor) -> None:
        """Give every rank the first one's tensor, in place, whatever the layouts in memory."""
        if self.size > 1:
            row = tensor.contiguous()
            with _named_loss():
                dist.broadcast(row, 0)
            tensor.copy_(row)

    def gather(self, values: JSONObject) -> list[JSONObject]:
        """Every rank's small JSON object, as bytes in tensors."""
        if self.size == 1:
            return [values]
        own = torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(own)
        self.add(lengths)
        padded = [torch.zeros(int(lengths.max()), dtype=torch.uint8) for _ in range(self.size)]
        mine = torch.zeros_like(padded[0])
        mine[: len(own)] = own
        with _named_loss():
            dist.all_gather(padded, mine)
        pieces = zip(padded, lengths.tolist(), strict=True)
        return [json.loads(part[:length].numpy().tobytes()) for part, length in pieces]


@contextlib.contextmanager
def _named_loss() -> Iterator[None]:
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RankLostError(
            f"another rank is gone or out of reach ({_reason(error)}); start the run again with --resume, or "
            "let torchrun do so with --max-restarts: it goes on from the last completed round"
        ) from error


def _reason(error: RuntimeError) -> str:
    """What the backend says, without the place in its source and its advice.

    >>> _reason(RuntimeError("[gloo/pair.cc:537] Connection closed by peer [::1]:7. Check the logs."))
    'Connection closed by peer [::1]:7'
    """
    first = (str(error).splitlines() or ["no reason given"])[0]
    return re.sub(r"\[[^\]\s]*\.\w+:\d+\] ?", "", first).split(". ")[0].rstrip(". ")


def started_as_group() -> bool:
    """Whether torchrun or srun started this process as one of several.

    A command in an allocation's shell or batch script has SLURM's variables too, but is alone.
    """
    environment = os.environ
    if "WORLD_SIZE" in environment:
        return int(environment["WORLD_SIZE"]) > 1
    in_script = environment.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in environment
    if "SLURM_PROCID" not in environment or in_script:
        return False
    return int(_slurm_tasks(environment)) > 1


def _slurm_tasks(environment: Mapping[str, str]) -> str:
    return environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1"))


@contextlib.contextmanager
def joined_group() -> Iterator[Group]:
    """Meet the other ranks; alone, do nothing."""
    if not started_as_group():
        yield Group(restarted=attempt() > 0)
        return
    environment = dict(os.environ)
    _fill_from_slurm(environment)
    try:
        os.environ.update({key: environment[key] for key in _NEEDED})
    except KeyError as error:
        raise ConfigError(
            f"this is one of several processes, but {error.args[0]} is not set; start them with torchrun"
        ) from error
    with _waiting_is_said():
        meeting = _meet()
    try:
        yield replace(Group.current(), restarted=meeting.restarted)
    except RankLostError as error:
        if (rank := _who_ended(meeting.store)) is not None:
            raise RankLostError(f"rank {rank} ended the run; its own message says why") from error
        raise
    except FedILCError:
        with contextlib.suppress(RuntimeError):
            meeting.store.set(_ENDED, os.environ["RANK"])
        raise
    finally:
        dist.destroy_process_group()


def _meet() -> Meeting:
    """Find the other ranks and connect to them."""
    with _named_loss():
        store, rank, size = next(rendezvous("env://", timeout=MEETING))
        meeting = meet(store, rank, size, MEETING)
        backend = "cpu:gloo,cuda:nccl" if meeting.nccl else "gloo"
        dist.init_process_group(backend, store=meeting.store, rank=rank, world_size=size, timeout=PATIENCE)
    return meeting


@contextlib.contextmanager
def _waiting_is_said() -> Iterator[None]:
    """Say whom this rank waits for, if that takes more than a moment."""
    rank, size, address = (os.environ[key] for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    sentence = f"fedilc: rank {rank} waits at {address} for the others of {size}\n"
    timer = threading.Timer(QUIET, lambda: sys.stderr.write(sentence))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _who_ended(store: Store) -> int | None:
    """The rank that ended the run with a message, where the store is still there to tell."""
    with contextlib.suppress(RuntimeError):
        if store.check([_ENDED]):
            return int(store.get(_ENDED))
    return None


def _fill_from_slurm(environment: dict[str, str]) -> None:
    """What torchrun would have set, from SLURM's own variables."""
    if "SLURM_PROCID" not in environment or "RANK" in environment:
        return
    environment["RANK"] = environment["SLURM_PROCID"]
    environment["WORLD_SIZE"] = _slurm_tasks(environment)
    environment.setdefault("MASTER_ADDR", first_host(environment.get("SLURM_STEP_NODELIST", "localhost")))
    step = int(environment.get("SLURM_JOB_ID", "0")) + 131 * int(environment.get("SLURM_STEP_ID", "0"))
    environment.setdefault("MASTER_PORT", str(20_000 + step % 20_000))


def first_host(nodes: str) -> str:
    """The first host of a SLURM list.

    >>> first_host("node[07-09,12],other3"), first_host("gpu1,gpu2")
    ('node07', 'gpu1')
    """
    match = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    return "localhost" if match is None else match[1] + (match[2] or "")


def runtime_here(store: SiloStore, model: nn.Module, program: Program, metrics: Metrics) -> LocalRuntime:
    """Return the runtime for silos that are opened here: in this process, or on all ranks it is one of."""
    group = Group.current()
    if group.size == 1:
        return LocalRuntime(store, model, program, metrics)
    return DistributedRuntime(group, store, model, program, metrics)


class DistributedRuntime(LocalRuntime):
    """The silos of this rank; sums and numbers meet those of the other ranks."""

    def __init__(
        self,
        group: Group,
        store: SiloStore | Federation,
        model: nn.Module,
        program: Program,
        metrics: Metrics,
    ) -> None:
        super().__init__(store, model, program, metrics)
        sizes = self.store.sizes
        if group.size > len(sizes):
            raise ConfigError(
                f"there are {group.size} ranks and {len(sizes)} silos; start no more ranks than silos"
            )
        own = group.share(sizes)
        self.store.let_go(own)
        self.group = group
        self.own = frozenset(own)
        self.leads = group.first

    def mine(self, silos: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the silos that are this rank's."""
        return tuple(silo for silo in silos if silo in self.own)

    def ask(self, request: Request) -> Iterator[Reply]:
        """Answer for this rank's silos; E, and all else, is as in the request to all."""
        return self._answers(self.mine(request.silos), request)

    def combine(self, sums: Sequence[tuple[Aggregator, Sums]], answers: Facts) -> Facts:
        """Add all sums in one all-reduce, and gather what all silos said beside them."""
        everyone: Facts = {}
        self._add_up(sums)
        for part in self.group.gather(answers):
            everyone |= part
        return everyone

    def follow(
        self, tensors: Mapping[str, Tensor], facts: dict[str, Any]
    ) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        """Return the first rank's tensors and facts."""
        layout = {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()}
        first = self.group.gather({"layout": layout, "facts": facts})[0]
        device, found = self.bench.device, dict[str, Tensor]()
        for name, (dtype, shape) in first["layout"].items():
            own = tensors.get(name) if self.leads else None
            blank = torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
            found[name] = blank if own is None else own
            self.group.send_from_first(found[name])
        return found, first["facts"]

    def agree(self, flag: bool) -> bool:
        """Return the first rank's flag."""
        told = torch.tensor([flag])
        self.group.send_from_first(told)
        return bool(told)

    def part_of(self, rows: int) -> slice:
        """Return an equal share of the rows, or all of them if there are fewer than ranks."""
        size, rank = self.group.size, self.group.rank
        return slice(rows * rank // size, rows * (rank + 1) // size) if size <= rows else slice(0, rows)

    def join_parts(self, values: Tensor) -> None:
        """Add up the ranks' rows."""
        self.group.add(values)

    def _add_up(self, sums: Sequence[tuple[Aggregator, Sums]]) -> None:
        if sums:
            add_up([state for _, state in sums], self.group.take_largest, self.group.add)
