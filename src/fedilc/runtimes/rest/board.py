"""The coordinator's notice board: the task that is up, who has answered it, and how each silo is doing.

The training thread puts tasks up and takes answers off; network threads read tasks and bring answers. Nothing
here knows about HTTP.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from fedilc.errors import ProtocolError
from fedilc.federation import Record, Reply, Request
from fedilc.federation.messages import check_reply
from fedilc.runtimes.rest.manifest import Manifest
from fedilc.runtimes.rest.wire import HEADER_BYTES, pack_request, task_name, unpack_reply

STRIKES = 3
State = Literal["not joined", "waiting", "working", "answered", "lost", "set aside"]


@dataclass
class SiloState:
    """What the coordinator knows of a silo."""

    name: str
    state: State = "not joined"
    examples: int | None = None
    last_seen: float | None = None
    loss: float | None = None
    bytes_received: int = 0
    bytes_sent: int = 0
    strikes: int = 0
    reason: str | None = None


class Posted:
    """A task that is up, as every silo asked gets it."""

    def __init__(
        self, request: Request, manifest: Manifest, expected: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        self.request = request
        self.manifest = manifest
        self.expected = expected
        self.name = task_name(request, manifest.hash)

    def body(self, have: int) -> bytes:
        """The task for a silo that has these weights (by version) or others."""
        return self._short if have == self.request.version else self._whole

    @cached_property
    def _whole(self) -> bytes:
        return pack_request(self.request, self.manifest.hash, True, self.manifest.wire)

    @cached_property
    def _short(self) -> bytes:
        return pack_request(self.request, self.manifest.hash, False, self.manifest.wire)


@dataclass(frozen=True)
class Refusal:
    """Why an answer was not taken: an HTTP status and one sentence."""

    status: int
    reason: str


@dataclass
class Progress:
    """Where the run is."""

    round: int = 0
    phase: str = "waiting for silos"
    started: float = field(default_factory=time.time)
    seconds_a_round: float | None = None
    outcome: str | None = None


class Board:
    """Tasks up, answers in. Every method may be called from any thread."""

    def __init__(self, manifest: Manifest, clock: Callable[[], float] = time.time) -> None:
        self.manifest = manifest
        self.clock = clock
        self.silos = {name: SiloState(name) for name in manifest.silos}
        self.progress = Progress()
        self.history: list[Record] = []
        self.revision = 0
        self._posted: Posted | None = None
        self._answered: dict[str, str] = {}
        self._replies: deque[Reply] = deque()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, from whatever thread, whenever something changes."""
        self._listeners.append(listener)

    def _tell(self) -> None:
        self.revision += 1
        self._changed.notify_all()
        for listener in self._listeners:
            listener()

    def post(self, posted: Posted) -> None:
        """Put a task up, in place of any other."""
        with self._changed:
            self._posted, self._answered = posted, {}
            self._replies.clear()
            self.progress.round, self.progress.phase = posted.request.round, posted.request.phase
            for name in posted.request.silos:
                if self.silos[name].state in ("answered", "working"):
                    self.silos[name].state = "waiting"
            self._tell()

    def take(self, seconds: float) -> Reply | None:
        """The next answer, or None where none came in time."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._replies) or self._hopeless(), seconds)
            return self._replies.popleft() if self._replies else None

    def _hopeless(self) -> bool:
        """Whether nobody is left who could still answer."""
        posted = self._posted
        return posted is not None and not any(
            name not in self._answered and self.silos[name].state != "set aside"
            for name in posted.request.silos
        )

    def hopeless(self) -> bool:
        """Whether every silo asked has answered or was set aside."""
        with self._changed:
            return not self._replies and self._hopeless()

    def close(self, lost: tuple[str, ...]) -> None:
        """Take the task down; those named did not answer it in time."""
        with self._changed:
            self._posted = None
            for name in lost:
                if self.silos[name].state != "set aside":
                    self.silos[name].state = "lost"
                    self.silos[name].reason = "did not answer in time"
            self._tell()

    def wait_for_silos(self, needed: int, patience: float) -> tuple[str, ...]:
        """Those who are here: all who ever joined and are not lost, at least `needed`.

        Who has not joined yet is waited for, `patience` seconds at most.
        """

        def here() -> tuple[str, ...]:
            absent = ("not joined", "lost", "set aside")
            return tuple(name for name, silo in self.silos.items() if silo.state not in absent)

        def enough() -> bool:
            joined = all(silo.state != "not joined" for silo in self.silos.values())
            late = time.monotonic() >= deadline
            able = sum(silo.state != "set aside" for silo in self.silos.values())
            return (len(here()) >= needed and (joined or late)) or able < needed

        deadline = time.monotonic() + patience
        with self._changed:
            while not enough():
                self._changed.wait(min(1.0, max(0.05, deadline - time.monotonic())))
            return here()

    def record(self, record: Record, seconds: float) -> None:
        """Add a completed round to what can be watched."""
        with self._changed:
            self.history.append(record)
            before = self.progress.seconds_a_round
            self.progress.seconds_a_round = seconds if before is None else 0.8 * before + 0.2 * seconds
            for name, numbers in record.get("silos", {}).items():
                if name in self.silos:
                    self.silos[name].loss = numbers.get("train_loss")
            self._tell()

    def finish(self, outcome: str) -> None:
        """The run is over; silos are told so when they ask."""
        with self._changed:
            self._posted = None
            self.progress.phase, self.progress.outcome = "ended", outcome
            self._tell()

    def seen(self, name: str, received: int = 0, sent: int = 0) -> None:
        """A silo was heard of."""
        with self._changed:
            silo = self.silos[name]
            silo.last_seen = self.clock()
            silo.bytes_received += received
            silo.bytes_sent += sent

    def join(self, name: str, examples: int) -> Refusal | None:
        """A silo says that it is here."""
        with self._changed:
            silo = self.silos[name]
            if silo.state == "set aside":
                return Refusal(403, f"silo {name!r} was set aside: {silo.reason}")
            silo.examples, silo.reason = examples, None
            silo.state = "waiting"
            self._tell()
            return None

    def task_for(self, name: str) -> Posted | Refusal | None:
        """The task that is up for a silo and that it has not answered."""
        with self._changed:
            silo = self.silos[name]
            if silo.state == "set aside":
                return Refusal(403, f"silo {name!r} was set aside: {silo.reason}")
            if self.progress.outcome is not None:
                return Refusal(410, f"the run is over: {self.progress.outcome}")
            if silo.state == "not joined":
                return Refusal(409, f"silo {name!r} has not joined; join first")
            if silo.state == "lost":
                silo.state, silo.reason = "waiting", None
                self._tell()
            posted = self._posted
            if posted is None or name not in posted.request.silos or name in self._answered:
                return None
            if silo.state != "working":
                silo.state = "working"
                self._tell()
            return posted

    def accept(self, name: str, round_: int, phase: str, task: str, body: bytes) -> Refusal | None:
        """Take a silo's answer to the task that is up; None if taken, now or before."""
        digest = hashlib.sha256(body).hexdigest()
        with self._changed:
            posted, known = self._posted, self._answered.get(name)
            refusal = self._misplaced(name, round_, phase, task)
        if refusal is not None or posted is None:
            return refusal
        if known is not None:
            return None if known == digest else Refusal(409, "another answer to this task was taken before")
        try:
            dtype = next(iter(self.manifest.like().values())).dtype
            reply = unpack_reply(body, name, posted.request.phase, posted.request.round, dtype)
            check_reply(reply, posted.request, posted.expected)
        except ProtocolError as error:
            return self._strike(name, str(error))
        with self._changed:
            if self._posted is not posted:
                return Refusal(409, "the task was taken down meanwhile; ask for the next")
            if name not in self._answered:
                self._answered[name] = digest
                self._replies.append(reply)
                self.silos[name].state = "answered"
                self._tell()
            return None

    def _misplaced(self, name: str, round_: int, phase: str, task: str) -> Refusal | None:
        posted, silo = self._posted, self.silos[name]
        if silo.state == "set aside":
            return Refusal(403, f"silo {name!r} was set aside: {silo.reason}")
        if posted is None or name not in posted.request.silos or task != posted.name:
            return Refusal(409, "no such task is up for this silo; ask for the next")
        if (round_, phase) != (posted.request.round, posted.request.phase):
            up = f"{posted.request.phase!r} of round {posted.request.round}"
            return Refusal(409, f"the task that is up is {up}, not {phase!r} of round {round_}")
        return None

    def _strike(self, name: str, reason: str) -> Refusal:
        """Report nonsense; after three times, go on without the silo."""
        with self._changed:
            silo = self.silos[name]
            silo.strikes += 1
            silo.reason = reason
            if silo.strikes >= STRIKES:
                silo.state = "set aside"
            self._tell()
            return Refusal(422, f"{reason} ({silo.strikes} of {STRIKES} before the silo is set aside)")

    @cached_property
    def most_bytes(self) -> int:
        """How large an answer may be: twice the parameters (gradient and product), C_e, and a header."""
        largest = max(like.numel() for like in self.manifest.like().values())
        statistics = 8 * (largest**2 if self.manifest.covariance == "full" else largest) + 8
        return max(2 * self.manifest.parameter_bytes, statistics) + HEADER_BYTES

    def about(self) -> dict[str, Any]:
        """The run's manifest and its hash."""
        return {"manifest": self.manifest.model_dump(mode="json"), "hash": self.manifest.hash}

    def over(self) -> bool:
        """Whether the run has ended."""
        return self.progress.outcome is not None

    def snapshot(self) -> dict[str, Any]:
        """All that the page shows beside the history."""
        with self._changed:
            left = None
            if self.progress.seconds_a_round is not None and self.progress.outcome is None:
                left = (self.manifest.rounds - len(self.history)) * self.progress.seconds_a_round
            return {
                "run": self.manifest.run,
                "algorithm": self.manifest.algorithm,
                "rounds": self.manifest.rounds,
                "completed": len(self.history),
                **asdict(self.progress),
                "seconds_left": left,
                "silos": [asdict(silo) for silo in self.silos.values()],
            }
