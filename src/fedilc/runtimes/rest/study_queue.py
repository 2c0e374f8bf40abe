"""The coordinator's queue of a federated study: open tasks, which each silo does one after another."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

from fedilc.errors import ProtocolError
from fedilc.federation import Record
from fedilc.runtimes.remote.study_manifest import StudyManifest
from fedilc.runtimes.remote.wire import content_digest, is_whole, pack, read_header
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.membership import Membership, RefusedError
from fedilc.runtimes.rest.task_queue import Body, Spool

SMALL_BYTES = 1 << 16  # of an answer of one word or sentence
_POLL_SECONDS = 0.5
_OTHER_REPLY = "another reply to this task was accepted before"
Answer = TypeVar("Answer")


class LostForGoodError(Exception):
    """A silo has left a study that continues without those that leave."""

    def __init__(self, silo: str, reason: str) -> None:
        super().__init__(f"silo {silo!r} has left the study: {reason}")
        self.silo, self.reason = silo, reason


class StudyTask(ABC, Generic[Answer]):
    """A task that is open to some silos.

    Attributes:
        name: of the task; the same task has the same name after a restart.
        step: what is asked for, in paths and on the page.
        round: its round.
        silos: those that must answer.
        declaration: what a silo must have confirmed before it can do the task; None if there is none.
    """

    name: str
    step: str
    round: int
    silos: tuple[str, ...]
    declaration: StudyTask[bool] | None = None

    @abstractmethod
    def pack(self, silo: str) -> bytes:
        """Return what a silo receives."""

    @abstractmethod
    def max_bytes(self, silo: str) -> int:
        """Return how large a silo's answer may be."""

    @abstractmethod
    def read(self, body: bytes, silo: str) -> Answer:
        """Return a silo's answer; raise if it is not valid."""


class Notice(StudyTask[bool]):
    """Something that silos are told, and confirm.

    Args:
        name: of the task.
        silos: those that are told.
        content: what they are told.
    """

    round = 1
    confirms: str  # the key of a confirmation

    def __init__(self, name: str, silos: Sequence[str], content: Mapping[str, Any]) -> None:
        self.name, self.silos = name, tuple(silos)
        self._body = pack({}, {"step": self.step, "task": name, **content}, digest=True)

    def pack(self, _silo: str) -> bytes:
        """Return what a silo is told."""
        return self._body

    def max_bytes(self, _silo: str) -> int:
        """Return how large a confirmation may be."""
        return SMALL_BYTES

    def read(self, body: bytes, _silo: str) -> bool:
        """Return that a silo has confirmed."""
        _, about = read_header(body, SMALL_BYTES)
        if about.get(self.confirms) is not True:
            raise ProtocolError("its answer is not a confirmation")
        return True


@dataclass
class _Open(Generic[Answer]):
    """An open task, the answers to it so far, and its bytes."""

    task: StudyTask[Answer]
    answers: dict[str, Answer] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    opened: float = field(default_factory=time.monotonic)

    def declares(self, task: str) -> bool:
        """Return whether a task is the declaration that this one needs."""
        return self.task.declaration is not None and self.task.declaration.name == task

    def body(self, _weights_digest: str, _to_sub_coordinator: bool = False, silo: str = "") -> bytes | None:
        """Return what a silo receives."""
        return self.task.pack(silo)

    def packed_body(
        self, _weights_digest: str, _to_sub_coordinator: bool = False, _silo: str = ""
    ) -> bytes | None:
        """Return None: a task is packed by a thread, which may take long."""
        return None


class StudyQueue(Membership):
    """The members of a study and the open tasks; every method may be called from any thread."""

    manifest: StudyManifest

    def __init__(
        self,
        manifest: StudyManifest,
        audit: Audit | None = None,
        spool: Spool | None = None,
        lost_after: float | None = None,
    ) -> None:
        super().__init__(manifest, audit)
        self.spool = spool or Spool()
        self.lost_after = lost_after
        self.round_timeout: float | None = None
        self.history: list[Record] = []
        self.informed: set[str] = set()
        self.answer_bytes = 1 << 20
        self.facts: dict[str, Any] = {}
        self.joined: dict[str, float] = {}
        self._confirmed: dict[str, set[str]] = {name: set() for name in self.silos}
        self._open: dict[str, _Open[Any]] = {}
        self._stopped = threading.Event()

    def ask(self, task: StudyTask[Answer]) -> dict[str, Answer]:
        """Open a task, and return the answers of all its silos, in their order.

        It waits for a silo that is away, unless the study continues without silos that leave.
        """
        opened: _Open[Answer] = _Open(task)
        with self._changed:
            self._open[task.name] = opened
            self._notify(workers=True)
            try:
                while missing := [silo for silo in task.silos if silo not in opened.answers]:
                    if self._stopped.is_set():
                        raise KeyboardInterrupt
                    self._require_there(missing, opened.opened)
                    self._changed.wait(_POLL_SECONDS)
            finally:
                del self._open[task.name]
                self._notify()
        return {silo: opened.answers[silo] for silo in task.silos}

    def stop(self) -> None:
        """Let nobody wait for answers any longer."""
        self._stopped.set()
        with self._changed:
            self._notify()

    def _require_there(self, missing: Sequence[str], since: float) -> None:
        """Raise if a silo has left for good: it was set aside, or has been away too long."""
        for name in missing:
            silo = self.silos[name]
            if silo.state == "set aside":
                raise LostForGoodError(name, str(silo.reason))
            if self.lost_after is None:
                continue
            away = time.time() - (silo.last_seen or 0.0)
            if min(away, time.monotonic() - since) > self.lost_after and silo.state != "working":
                raise LostForGoodError(name, f"it has not been seen for {self.lost_after:g} seconds")
            if min(away, time.monotonic() - since) > 10 * self.lost_after:
                raise LostForGoodError(name, "it did not answer in time")

    def join(self, name: str, examples: int | None) -> None:
        """Let a silo join; it may have been started again, and then knows no declaration."""
        with self._changed:
            super().join(name, examples)
            self._confirmed[name] = set()
            self.joined.setdefault(name, time.time())

    def show(self, **facts: Any) -> None:
        """Show facts on the page."""
        with self._changed:
            self.facts |= facts
            self._notify()

    def task_for(self, name: str) -> _Open[Any] | None:
        """Return the first open task that the silo has yet to do."""
        with self._changed:
            status = self._admit(name)
            if self.progress.outcome is not None:
                self.informed.add(name)
                raise RefusedError(410, self.progress.outcome)
            if status.state == "not joined":
                raise RefusedError(409, f"silo {name!r} has not joined; join first")
            for opened in self._open.values():
                if name in opened.task.silos and name not in opened.answers:
                    if status.state != "working":
                        status.state = "working"
                        self._notify()
                    first = opened.task.declaration
                    if first is not None and first.name not in self._confirmed[name]:
                        return _Open(first)
                    return opened
            return None

    def max_reply_bytes(self, name: str, round_: int, step: str, task: str) -> int:
        """Return how large an answer may be; refuse one to another task before it is read."""
        with self._changed:
            return self._require_open(name, round_, step, task).task.max_bytes(name)

    def accept(
        self, name: str, round_: int, step: str, task: str, body: Body, sent_digest: str | None = None
    ) -> None:
        """Accept a silo's answer to an open task, once; refuse another one."""
        content = body.content()
        digest = content_digest(content)
        if not is_whole(digest, sent_digest):
            raise RefusedError(400, "the body does not match its Content-Digest")
        with self._changed:
            opened = self._require_open(name, round_, step, task)
            if name in opened.answers:
                if opened.digests[name] == digest:  # sent twice, because the first response was lost
                    return
                raise RefusedError(409, _OTHER_REPLY)
        try:
            answer = opened.task.read(content, name)
        except ProtocolError as error:
            raise self.strike(name, str(error)) from error
        with self._changed:
            if task not in self._open and any(one.declares(task) for one in self._open.values()):
                self._confirmed[name].add(task)
                return
            if self._open.get(task) is not opened:
                raise RefusedError(409, "the task was closed meanwhile; ask for the next")
            opened.answers[name], opened.digests[name] = answer, digest
            self.silos[name].state, self.silos[name].reason = "answered", None
            self._notify()

    def _require_open(self, name: str, round_: int, step: str, task: str) -> _Open[Any]:
        """Return the open task; refuse an answer to another one."""
        self._admit(name)
        opened = self._open.get(task)
        first = next((one.task.declaration for one in self._open.values() if one.declares(task)), None)
        if opened is None and first is not None:
            opened = _Open(first)
        if opened is None or name not in opened.task.silos:
            raise RefusedError(409, "this task is not open for this silo; ask for the next")
        if (round_, step) != (opened.task.round, opened.task.step):
            raise RefusedError(409, "this task has another step or round; ask for the next")
        return opened

    def answered(self, _name: str) -> tuple[str, list[str]]:
        """Return that no task is open for sub-coordinators."""
        return "", []

    def finish(self, outcome: str) -> None:
        """End the study; silos are told when they ask for a task."""
        with self._changed:
            self.progress.phase, self.progress.outcome = "ended", outcome
            self.facts["seconds_left"] = None
            self.audit.event("ended", outcome=outcome)
            self._notify(workers=True)

    def about(self) -> dict[str, Any]:
        """Return the study's manifest and its hash."""
        return {"study": self.manifest.model_dump(mode="json"), "hash": self.manifest.hash}

    def is_over(self) -> bool:
        """Return whether the study has ended."""
        return self.progress.outcome is not None

    def snapshot(self) -> dict[str, Any]:
        """Return what the page shows."""
        with self._changed:
            return {
                "run": self.manifest.run,
                "algorithm": "study",
                "rounds": 0,
                "completed": 0,
                **asdict(self.progress),
                "seconds_left": None,
                **self.facts,
                "silos": [asdict(silo) for silo in self.silos.values()],
            }
