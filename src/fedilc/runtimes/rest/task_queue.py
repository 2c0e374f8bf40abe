"""The coordinator's task queue: the open request, the replies to it, and who waits for them.

The training thread opens a request and takes replies; network threads give it to silos and accept replies.
Replies that do not fit into memory wait on disk (`Spool`), and `Notifier` wakes the event loop.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from fedilc.errors import ProtocolError
from fedilc.federation import AggregatedReply, Record, Reply
from fedilc.federation.outliers import AGAINST_ROUNDS, against_sentence
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.open_request import NotAskedError, OpenRequest
from fedilc.runtimes.remote.wire import content_digest, is_whole
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.membership import WAITING, Membership, RefusedError

MEMORY_BYTES = 12 << 20  # of replies that wait to be added up; the others wait on disk
_OTHER_REPLY = "another reply to this task was accepted before"


class TaskQueue(Membership):
    """One open request at a time to the members of a run, and its replies."""

    manifest: Manifest

    def __init__(
        self,
        manifest: Manifest,
        audit: Audit | None = None,
        spool: Spool | None = None,
        silos: Iterable[str] | None = None,
    ) -> None:
        super().__init__(manifest, audit, silos)
        self.round_timeout: float | None = None
        self.history: list[Record] = []
        self.informed: set[str] = set()
        self.spool = spool or Spool()
        self.open_request: OpenRequest | None = None
        self._asked: frozenset[str] = frozenset()
        self._answered: dict[str, str] = {}
        self._replies: deque[SpooledReply] = deque()

    def open(self, open_request: OpenRequest) -> None:
        """Open a request in place of any other."""
        with self._changed:
            self.open_request, self._answered = open_request, {}
            self._asked = open_request.asked
            self._replies.clear()
            self.progress.round, self.progress.phase = open_request.request.round, open_request.request.step
            for name in self._asked:
                if self.silos[name].state in ("answered", "working"):
                    self.silos[name].state = "waiting"
            self._notify(workers=True)

    def take_reply(self, seconds: float) -> SpooledReply | None:
        """Return the next reply, or None if none came in time."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._replies) or self.is_settled(), seconds)
            return self._replies.popleft() if self._replies else None

    def is_settled(self) -> bool:
        """Return whether every reply was taken, and no silo is left that could still reply."""
        with self._changed:
            if self.open_request is None or self._replies:
                return False
            return all(
                name in self._answered or self.silos[name].state == "set aside" for name in self._asked
            )

    def close(self, lost: tuple[str, ...]) -> None:
        """Close the request; the silos in `lost` did not reply in time."""
        with self._changed:
            if self.open_request is not None:
                self.open_request.close()
            self.open_request = None
            self._mark_lost(lost)
            self._notify()

    def _notice(self, record: Record) -> None:
        """Show the silos whose updates point against the others'; the audit has the round that finds it."""
        against = record.get("against", {})
        for name, silo in self.silos.items():
            silo.notice = against_sentence(against[name]) if name in against else None
            if against.get(name) == AGAINST_ROUNDS:
                self.audit.event("against", silo=name, round=record["round"], reason=silo.notice)

    def record(self, record: Record, seconds: float) -> None:
        """Add a completed round to the history."""
        with self._changed:
            self.history.append(record)
            states = [name for name, silo in self.silos.items() if silo.state == "answered"]
            answered = list(record.get("silos", {})) or states
            for name, entry in record.get("silos", {}).items():
                if "clipped_from" in entry:
                    norm = entry["clipped_from"]
                    self.silos[name].reason = f"clipped from norm {norm:.3g} in round {record['round']}"
            self._notice(record)
            self.audit.event("round", round=record["round"], seconds=round(seconds, 3), answered=answered)
            before = self.progress.seconds_a_round
            self.progress.seconds_a_round = seconds if before is None else 0.8 * before + 0.2 * seconds
            self._notify()

    def finish(self, outcome: str) -> None:
        """End the run; silos are told when they ask for a task."""
        with self._changed:
            self.open_request = None
            self.progress.phase, self.progress.outcome = "ended", outcome
            self.audit.event("ended", outcome=outcome)
            self._notify(workers=True)

    def answered(self, name: str) -> tuple[str, list[str]]:
        """Return the open task's name, and which silos of a sub-coordinator have replied to it."""
        with self._changed:
            task = self.open_request.name if self.open_request is not None else ""
            return task, [silo for silo in self._silos_of(name) if silo in self._answered]

    def task_for(self, name: str) -> OpenRequest | None:
        """Return the open request, if the silo, or one of a sub-coordinator's silos, has yet to reply."""
        with self._changed:
            status, silos = self._admit(name), self._silos_of(name)
            if self.progress.outcome is not None:
                self.informed.update((name, *silos))
                raise RefusedError(410, self.progress.outcome)
            if status.state == "not joined" or status.via is not None or name in self._must_join_again:
                raise RefusedError(409, f"silo {name!r} has not joined; join first")
            due = self._due(silos)
            if self.open_request is None or not due:
                return None
            for silo in (self.silos[silo] for silo in due):
                if silo.state != "working":
                    silo.state = "working"
                    self._notify()
            return self.open_request

    def _due(self, silos: Iterable[str]) -> list[str]:
        """Return those silos that are asked and have not replied."""
        return [silo for silo in silos if silo in self._asked and silo not in self._answered]

    def max_reply_bytes(self, name: str, round_: int, step: str, task: str) -> int:
        """Return how large a reply may be; refuse one that answers another task before it is read."""
        with self._changed:
            open_request, silos = self._require_open(name, round_, step, task)
        return open_request.max_bytes if name in self.silos else open_request.max_aggregated_bytes(len(silos))

    def accept(
        self, name: str, round_: int, step: str, task: str, body: Body, sent_digest: str | None = None
    ) -> None:
        """Accept a silo's reply to the open request, once; refuse another one.

        `sent_digest` is the digest that the silo sent with it, to detect a body damaged on the way.
        """
        content = body.content()
        digest = content_digest(content)
        if not is_whole(digest, sent_digest):
            raise RefusedError(400, "the body does not match its Content-Digest")
        with self._changed:
            open_request, silos = self._require_open(name, round_, step, task)
            due, known = self._due(silos), {self._answered.get(silo) for silo in silos}
        if digest in known:  # sent twice, because the first response was lost
            return
        if not due:
            raise RefusedError(409, _OTHER_REPLY)
        if name in self.silos:
            read: Callable[[bytes], Reply | AggregatedReply] = partial(open_request.read, silo=name)
        else:
            read = partial(open_request.read_aggregated, silos=silos, wanted=due)
        # Decoded without the lock, because that takes long; what was checked before is checked again below.
        try:
            reply = read(content)
            self._require_same_count(reply)
        except NotAskedError as error:
            raise RefusedError(409, str(error)) from error
        except ProtocolError as error:
            raise self.strike(name, str(error)) from error
        with self._changed:
            if self.open_request is not open_request:
                raise RefusedError(409, "the task was closed meanwhile; ask for the next")
            # Meanwhile a copy of this reply may have been accepted, which is fine; or another reply, or its
            # silos may have joined elsewhere, which is not.
            if set(reply.silos) <= set(self._due(self._silos_of(name))):
                self._record_reply(name, reply, digest)
                self._replies.append(SpooledReply(reply, read, body))
                self._notify()
            elif any(self._answered.get(silo) != digest for silo in reply.silos):
                raise RefusedError(409, _OTHER_REPLY)

    def _record_reply(self, name: str, reply: Reply | AggregatedReply, digest: str) -> None:
        """Record which silos have replied, and which ones a sub-coordinator has lost."""
        for one in _each(reply):
            self._answered[one.silo] = digest
            silo = self.silos[one.silo]
            silo.reason = None if silo.state == "lost" else silo.reason
            silo.state = "answered"
            silo.loss = one.numbers.get("loss", silo.loss)
        if isinstance(reply, AggregatedReply):
            left = [silo for silo in self._silos_of(name) if silo not in reply.lost]
            self._assign(name, left, reply.lost)

    def _require_open(
        self, name: str, round_: int, step: str, task: str
    ) -> tuple[OpenRequest, tuple[str, ...]]:
        """Return the open request and the silos that a member replies for; refuse a reply to another task."""
        self._admit(name)
        open_request, silos = self.open_request, self._silos_of(name)
        if open_request is None or self._asked.isdisjoint(silos) or task != open_request.name:
            raise RefusedError(409, "this task is not open for this silo; ask for the next")
        if (round_, step) != (open_request.request.round, open_request.request.step):
            expected = f"{open_request.request.step!r} of round {open_request.request.round}"
            raise RefusedError(409, f"the open task is {expected}, not {step!r} of round {round_}")
        return open_request, silos

    def _require_same_count(self, reply: Reply | AggregatedReply) -> None:
        """Raise if a silo's number of examples has changed, because that number may be the silo's weight."""
        for one in _each(reply):
            joined = self.silos[one.silo].examples
            now = one.numbers.get("examples", joined)
            if now != joined:
                who = "it" if isinstance(reply, Reply) else f"silo {one.silo!r}"
                raise ProtocolError(f"{who} has {now} examples, but joined with {joined}")

    @property
    def answer_bytes(self) -> int:
        """Return how large the largest reply of a step is, in bytes."""
        return self.manifest.program.answer_bytes

    def about(self) -> dict[str, Any]:
        """Return the run's manifest and its hash."""
        return {"manifest": self.manifest.model_dump(mode="json"), "hash": self.manifest.hash}

    def is_over(self) -> bool:
        """Return whether the run has ended."""
        return self.progress.outcome is not None

    def snapshot(self) -> dict[str, Any]:
        """Return what the page shows besides the history."""
        with self._changed:
            lost = any(self.silos[name].state == "lost" for name in self._asked)
            left, phase = None, WAITING if lost and self.open_request is not None else self.progress.phase
            if self.progress.seconds_a_round is not None and phase not in (WAITING, "ended"):
                left = (self.manifest.rounds - len(self.history)) * self.progress.seconds_a_round
            return {
                "run": self.manifest.run,
                "algorithm": self.manifest.algorithm,
                "rounds": self.manifest.rounds,
                "secure": bool(self.manifest.secure),
                "completed": len(self.history),
                **asdict(self.progress),
                "phase": phase,
                "seconds_left": left,
                "silos": [asdict(silo) for silo in self.silos.values()],
                "carriers": [asdict(status) for status in self.sub_coordinators.values()],
            }


def _each(reply: Reply | AggregatedReply) -> Iterable[Reply]:
    """Return the replies of single silos."""
    return reply.replies.values() if isinstance(reply, AggregatedReply) else (reply,)


class Notifier:
    """Wake all waiters of an event loop; `listen` is given the function that does so from any thread."""

    def __init__(self, listen: Callable[[Callable[[], None]], None]) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()
        self._scheduled = False
        self.closed = False
        listen(self._wake)

    def attach(self) -> None:
        """Use the running loop; call this before checking whether there is anything to wait for."""
        self._loop = asyncio.get_running_loop()

    def _wake(self) -> None:
        # Many changes between two turns of the loop wake it once. If two threads both see False here, it is
        # woken twice, which does no harm.
        if self._loop is not None and not self._scheduled:
            self._scheduled = True
            with suppress(RuntimeError):  # the loop is closed once the server has stopped
                self._loop.call_soon_threadsafe(self._notify_all)

    def _notify_all(self) -> None:
        # First the flag: what changes from here on schedules the next turn. Waiters hold the old event, which
        # is set; those who wait from now on get a new one.
        self._scheduled = False
        self._event.set()
        self._event = asyncio.Event()

    def close(self) -> None:
        """Wake all waiters because the server stops; nobody waits again."""
        self.closed = True
        self._wake()

    async def wait(self, seconds: float) -> None:
        """Wait until woken or until the time is up; return at once if closed."""
        if not self.closed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), seconds)


class Spool:
    """The count of bytes of replies in memory, and the folder for replies that do not fit."""

    def __init__(self, folder: Path | None = None, max_bytes: int = MEMORY_BYTES) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self.held = 0
        self._larger: object = None
        self._lock = threading.RLock()  # a body may be collected while the lock is held

    def take(self, size: int) -> bool:
        """Count bytes in memory; return whether there is room."""
        with self._lock:
            if self.held + size > self.max_bytes:
                return False
            self.held += size
            return True

    def exceed(self, size: int, body: object) -> bool:
        """Let one body at a time exceed the limit, so that a full disk slows a round but does not end it."""
        with self._lock:
            if self._larger not in (None, id(body)):
                return False
            self._larger = id(body)
            self.held += size
            return True

    def give_back(self, size: int, body: object) -> None:
        """Stop counting bytes in memory."""
        with self._lock:
            self.held -= size
            if self._larger == id(body):
                self._larger = None


@dataclass
class Body:
    """The body of a silo's request while it is received."""

    spool: Spool
    size: int = 0
    _parts: list[bytes] = field(default_factory=list)
    _file: IO[bytes] | None = None
    _counted: int = 0

    def write(self, part: bytes) -> None:
        """Add a part; raise OSError if there is no room, neither in memory nor on disk."""
        self.size += len(part)
        if self._file is None and not self.spool.take(len(part)):
            try:
                self._move_to_disk()
            except OSError:
                if not self.spool.exceed(len(part), self):
                    raise
        if self._file is not None:
            self._file.write(part)
        else:
            self._counted += len(part)
            self._parts.append(part)

    def _move_to_disk(self) -> None:
        file = tempfile.TemporaryFile(dir=self.spool.folder)  # noqa: SIM115 - lives as long as the body
        file.writelines(self._parts)
        self._file = file
        self.forget()

    @property
    def on_disk(self) -> bool:
        """Return whether the body is on disk, because there was no room in memory."""
        return self._file is not None

    def content(self) -> bytes:
        """Return the whole body."""
        if self._file is not None:
            self._file.seek(0)
            return self._file.read()
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0] if self._parts else b""

    def drop_parts(self) -> None:
        """Release the bytes, but keep counting them: the decoded tensors take as much memory."""
        self._parts.clear()

    def forget(self) -> None:
        """Release the body from memory."""
        self._parts.clear()
        self.spool.give_back(self._counted, self)
        self._counted = 0

    def __del__(self) -> None:
        self.forget()


class SpooledReply:
    """An accepted reply that waits to be added up: decoded, or as bytes if its body is on disk."""

    def __init__(
        self, reply: Reply | AggregatedReply, read: Callable[[bytes], Reply | AggregatedReply], body: Body
    ) -> None:
        self.silos = reply.silos
        self._reply = None if body.on_disk else reply
        self._read, self._body = read, body
        if not body.on_disk:
            body.drop_parts()

    def reply(self) -> Reply | AggregatedReply:
        """Return the reply and release it here; call this only once."""
        reply, self._reply = self._reply, None
        if reply is None:
            return self._read(self._body.content())
        self._body.forget()
        return reply
