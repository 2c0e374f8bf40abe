"""Train over the ranks of `torch.distributed`: each rank adds up its silos, an all-reduce adds up the ranks.

`torchrun.py` reads which rank this process is and which run it continues, and lets the ranks find each other.

Every rank runs the same server. In each step it asks its own silos and adds up their replies with the same
aggregator. One all-reduce then gives every rank the sums of all, and all take the same step. No rank sees
the examples of another rank; it sees the gradient of a single silo there only for a trimmed mean or a median.
Only tensors are sent, never pickled objects.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from heapq import heappop, heappush
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from fedilc.aggregation import Aggregator, KeptValues, Sums, add_up
from fedilc.data import Federation
from fedilc.data.silo_store import SiloStore
from fedilc.errors import ConfigError, FedILCError
from fedilc.federation.client import Metrics
from fedilc.federation.program import Program
from fedilc.federation.protocol import SiloNumbers
from fedilc.gradients import ModelRunner
from fedilc.runtimes.local import LocalRuntime
from fedilc.runtimes.torchrun import (
    Attempt,
    RankLostError,
    join_attempt,
    restart_count,
    started_as_group,
    with_slurm,
)

COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # ranks wait for the slowest silo in every step
START_TIMEOUT = timedelta(minutes=10)
NOTICE_SECONDS = 15.0
_ENDED = "ended"
JSONObject = TypeVar("JSONObject", bound=Mapping[str, object])
_REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def runtime_here(store: SiloStore, runner: ModelRunner, program: Program, metrics: Metrics) -> LocalRuntime:
    """Return a runtime for silos opened in this process, or on all ranks of the group it belongs to."""
    group = Group.current()
    if group.size == 1:
        return LocalRuntime(store, runner, program, metrics)
    return DistributedRuntime(group, store, runner, program, metrics)


class DistributedRuntime(LocalRuntime):
    """A runtime that asks the silos of this rank, and adds up its sums with those of the other ranks."""

    def __init__(
        self,
        group: Group,
        store: SiloStore | Federation,
        runner: ModelRunner,
        program: Program,
        metrics: Metrics,
    ) -> None:
        super().__init__(store, runner, program, metrics)
        sizes = self.store.sizes
        if group.size > len(sizes):
            raise ConfigError(
                f"there are {group.size} ranks and {len(sizes)} silos; start no more ranks than silos"
            )
        own = group.share(sizes)
        self.store.keep_only(own)
        self.group = group
        self.own = frozenset(own)
        self.leads = group.first

    def combine(self, sums: Sequence[tuple[Aggregator, Sums]], replies: SiloNumbers) -> SiloNumbers:
        """Add up all sums in one all-reduce; return the replies of all silos, without tensors.

        A trimmed mean or a median needs all values, so ranks exchange the updates of their silos for it.
        """
        if sums:
            add_up([state for _, state in sums], self.group.take_largest, self.group.add)
        for state in (state for _, state in sums if isinstance(state, KeptValues)):
            state.exchange(self.group.gather_rows)
        return {silo: reply for part in self.group.gather(replies) for silo, reply in part.items()}

    def broadcast(
        self, tensors: Mapping[str, Tensor], facts: dict[str, Any]
    ) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        """Return the first rank's tensors and facts, on every rank."""
        layout = {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()}
        first = self.group.gather({"layout": layout, "facts": facts})[0]
        if not self.leads:
            tensors = {
                name: torch.zeros(shape, dtype=getattr(torch, dtype), device=self.runner.device)
                for name, (dtype, shape) in first["layout"].items()
            }
        for tensor in tensors.values():
            self.group.send_from_first(tensor)
        return tensors, first["facts"]

    def compute_rows(self, compute: Callable[[slice], Tensor], rows: int) -> Tensor:
        """Compute an equal share of the rows on each rank, or all if there are fewer rows than ranks."""
        size, rank = self.group.size, self.group.rank
        if size > rows:
            return super().compute_rows(compute, rows)
        mine = slice(rows * rank // size, rows * (rank + 1) // size)
        part = compute(mine)
        found = part.new_zeros(rows, *part.shape[1:])
        found[mine] = part
        self.group.add(found)
        return found


@dataclass(frozen=True)
class Group:
    """The ranks of a run: this one's number, how many there are, whether torchrun restarted any."""

    rank: int = 0
    size: int = 1
    restarted: bool = False

    @classmethod
    def current(cls) -> Group:
        """Return the group that this process has joined, or a group of one."""
        joined = dist.is_available() and dist.is_initialized()
        return cls(dist.get_rank(), dist.get_world_size()) if joined else cls()

    @property
    def first(self) -> bool:
        """Return whether this rank writes and reports."""
        return self.rank == 0

    def share(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Return this rank's silos, in order.

        Silos are assigned from largest to smallest, each to the rank with the fewest examples so far.
        """
        load: list[tuple[int, int]] = [(0, rank) for rank in range(self.size)]
        mine = set()
        for name in sorted(sizes, key=lambda name: -sizes[name]):
            examples, rank = heappop(load)
            heappush(load, (examples + sizes[name], rank))
            if rank == self.rank:
                mine.add(name)
        return tuple(name for name in sizes if name in mine)

    def add(self, tensor: Tensor) -> None:
        """Add up the tensors of all ranks, in place."""
        with _name_lost_rank():
            dist.all_reduce(tensor)

    def take_largest(self, tensor: Tensor) -> None:
        """Take the largest of each number over all ranks, in place."""
        with _name_lost_rank():
            dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def send_from_first(self, tensor: Tensor) -> None:
        """Copy the first rank's tensor to every rank, in place, whatever the memory layouts are."""
        row = tensor.contiguous()
        with _name_lost_rank():
            dist.broadcast(row, 0)
        tensor.copy_(row)

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Return the rows of every rank, the first rank's first; their numbers may differ."""
        counts = torch.zeros(self.size, dtype=torch.int64, device=rows.device)
        counts[self.rank] = len(rows)
        self.add(counts)
        most = int(counts.max())
        mine = rows.new_zeros(most, *rows.shape[1:])
        mine[: len(rows)] = rows
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with _name_lost_rank():
            dist.all_gather(found, mine)
        return torch.cat([part[:count] for part, count in zip(found, counts.tolist(), strict=True)])

    def gather(self, values: JSONObject) -> list[JSONObject]:
        """Return the JSON object of every rank; they are sent as tensors of bytes, never pickled."""
        own = torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(own)
        self.add(lengths)
        padded = [torch.zeros(int(lengths.max()), dtype=torch.uint8) for _ in range(self.size)]
        mine = torch.zeros_like(padded[0])
        mine[: len(own)] = own
        with _name_lost_rank():
            dist.all_gather(padded, mine)
        pieces = zip(padded, lengths.tolist(), strict=True)
        return [json.loads(part[:length].numpy().tobytes()) for part, length in pieces]


@contextlib.contextmanager
def _name_lost_rank() -> Iterator[None]:
    """Turn an error of the backend into one sentence that says that a rank is lost, and what to do."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RankLostError(
            f"another rank is gone or cannot be reached ({_reason(error)}); start the run again with "
            "`resume=True`, or let torchrun do so with --max-restarts: it continues after the last completed "
            "round"
        ) from error


def _reason(error: RuntimeError) -> str:
    """Return the backend's message without its source location and its advice.

    >>> _reason(RuntimeError("[gloo/pair.cc:537] Connection closed by peer [::1]:7. Check the logs."))
    'Connection closed by peer [::1]:7'
    """
    first = (str(error).splitlines() or ["no reason given"])[0]
    return re.sub(r"\[[^\]\s]*\.\w+:\d+\] ?", "", first).split(". ")[0].rstrip(". ")


@contextlib.contextmanager
def joined_group() -> Iterator[Group]:
    """Join the other ranks of the run; do nothing if this process is the only one."""
    if not started_as_group():
        yield Group(restarted=restart_count() > 0)
        return
    environment = with_slurm(os.environ)
    try:
        os.environ.update({key: environment[key] for key in _REQUIRED})
    except KeyError as error:
        raise ConfigError(
            f"this is one of several processes, but {error.args[0]} is not set; start them with torchrun"
        ) from error
    attempt = _connect()
    try:
        yield replace(Group.current(), restarted=attempt.restarted)
    except RankLostError as error:
        if (rank := _ended_by(attempt.store)) is not None:
            raise RankLostError(f"rank {rank} ended the run; its own message says why") from error
        raise
    except FedILCError:
        with contextlib.suppress(RuntimeError):
            attempt.store.set(_ENDED, os.environ["RANK"])
        raise
    finally:
        dist.destroy_process_group()


def _connect() -> Attempt:
    """Connect to the other ranks; print what this rank waits for if that takes over `NOTICE_SECONDS`."""
    own, ranks, address = (os.environ[key] for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    sentence = f"fedilc: rank {own} waits at {address} for the other ranks ({ranks} in all)\n"
    notice = threading.Timer(NOTICE_SECONDS, lambda: sys.stderr.write(sentence))
    notice.daemon = True
    notice.start()
    try:
        with _name_lost_rank():
            store, rank, size = next(rendezvous("env://", timeout=START_TIMEOUT))
            attempt = join_attempt(store, rank, size, START_TIMEOUT)
            backend = "cpu:gloo,cuda:nccl" if attempt.nccl else "gloo"
            members = {"store": attempt.store, "rank": rank, "world_size": size}
            dist.init_process_group(backend, **members, timeout=COLLECTIVE_TIMEOUT)
    finally:
        notice.cancel()
    return attempt


def _ended_by(store: Store) -> int | None:
    """Return the rank that ended the run with a message, if the store can still be read."""
    with contextlib.suppress(RuntimeError):
        if store.check([_ENDED]):
            return int(store.get(_ENDED))
    return None
