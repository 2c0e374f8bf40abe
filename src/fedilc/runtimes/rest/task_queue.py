"""The coordinator's notice board: the task that is up, who has answered it, and how each silo is doing.

The training thread puts tasks up and takes answers off; network threads read tasks and bring answers. Nothing
here knows about HTTP.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from fedilc.errors import ProtocolError, SilosLostError
from fedilc.federation import Record, Reply
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.open_request import Posted
from fedilc.runtimes.remote.wire import content_digest, is_whole
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.reply_spool import Body, HeldReply, Spool, hold
from fedilc.runtimes.rest.status import WAITING, Progress, Refusal, SiloState

STRIKES = 3
_OTHER_ANSWER = Refusal(409, "another answer to this task was taken before")


class Board:
    """Tasks up, answers in. Every method may be called from any thread."""

    def __init__(
        self,
        manifest: Manifest,
        clock: Callable[[], float] = time.time,
        audit: Audit | None = None,
        spool: Spool | None = None,
    ) -> None:
        self.manifest = manifest
        self.audit = audit or Audit()
        self.clock = clock
        self.silos = {name: SiloState(name) for name in manifest.silos}
        self.progress = Progress()
        self.history: list[Record] = []
        self.revision = 0
        self.told: set[str] = set()
        self._patient_until: float | None = None
        self._posted: Posted | None = None
        self._answered: dict[str, str] = {}
        self.spool = spool or Spool()
        self._replies: deque[HeldReply] = deque()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._workers: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, from whatever thread, whenever something changes."""
        self._listeners.append(listener)

    def listen_for_tasks(self, listener: Callable[[], None]) -> None:
        """Call `listener`, from whatever thread, whenever what silos are told changes."""
        self._workers.append(listener)

    def _tell(self, workers: bool = False) -> None:
        self.revision += 1
        self._changed.notify_all()
        for listener in self._listeners + (self._workers if workers else []):
            listener()

    def post(self, posted: Posted) -> None:
        """Put a task up, in place of any other."""
        with self._changed:
            self._posted, self._answered = posted, {}
            self._replies.clear()
            self.progress.round, self.progress.phase = posted.request.round, posted.request.step
            for name in posted.request.silos:
                if self.silos[name].state in ("answered", "working"):
                    self.silos[name].state = "waiting"
            self._tell(workers=True)

    def take(self, seconds: float) -> HeldReply | None:
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

    def overdue(self, names: Iterable[str]) -> None:
        """Those named did not answer in time, but the task stays up because too few others did."""
        with self._changed:
            self._lose(names)
            self._tell()

    def _lose(self, names: Iterable[str]) -> None:
        for name in names:
            if self.silos[name].state != "set aside":
                if self.silos[name].state != "lost":
                    self.audit.event("lost", silo=name, round=self.progress.round)
                self.silos[name].state = "lost"
                self.silos[name].reason = "did not answer in time"

    def outlying(self, round_: int, reasons: Mapping[str, str]) -> None:
        """A round goes on without the answers of these silos, which are asked again in the next."""
        with self._changed:
            for name, reason in reasons.items():
                self.silos[name].reason = f"set aside in round {round_}: {reason}"
                self.audit.event("set aside", silo=name, round=round_, reason=reason)
            self._tell()

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Go on without these silos for good."""
        with self._changed:
            for silo in (self.silos[name] for name in reasons):
                if silo.state != "set aside":
                    silo.state, silo.reason = "set aside", reasons[silo.name]
                    self.audit.event("left out", silo=silo.name, reason=silo.reason)
                    self._tell(workers=True)

    def reasons(self, names: Iterable[str]) -> dict[str, str]:
        """Why silos were lost or set aside."""
        with self._changed:
            found = [self.silos[name] for name in names]
            return {
                silo.name: f"set aside: {silo.reason}" if silo.state == "set aside" else silo.reason
                for silo in found
                if silo.reason
            }

    def close(self, lost: tuple[str, ...]) -> None:
        """Take the task down; those named did not answer it in time."""
        with self._changed:
            if self._posted is not None:
                self._posted.close()
            self._posted = None
            self._lose(lost)
            self._tell()

    def wait_for_silos(self, needed: int, patience: float) -> tuple[str, ...]:
        """Those who are here: all who ever joined and are not lost, at least `needed`.

        Who has not joined yet is waited for until `patience` seconds after the first call, once and for all.
        """
        if self._patient_until is None:
            self._patient_until = time.monotonic() + patience
        deadline = self._patient_until

        def here() -> tuple[str, ...]:
            absent = ("not joined", "lost", "set aside")
            return tuple(name for name, silo in self.silos.items() if silo.state not in absent)

        def complete() -> bool:
            awaited = any(silo.state == "not joined" for silo in self.silos.values())
            return len(here()) >= needed and (not awaited or time.monotonic() >= deadline)

        with self._changed:
            if not complete():
                self.progress.phase = WAITING
                self._tell()
            while not complete():
                self._require_able(needed)
                self._changed.wait(min(1.0, max(0.05, deadline - time.monotonic())))
            return here()

    def _require_able(self, needed: int) -> None:
        aside = [name for name, silo in self.silos.items() if silo.state == "set aside"]
        if len(self.silos) - len(aside) < needed:
            said = "; ".join(f"{name}: {self.silos[name].reason}" for name in aside)
            raise SilosLostError(
                f"{', '.join(aside)} {'was' if len(aside) == 1 else 'were'} set aside ({said}), and "
                f"fewer than min_silos={needed} are left; mend what is wrong there and start again, or lower "
                "min_silos"
            )

    def record(self, record: Record, seconds: float) -> None:
        """Add a completed round to what can be watched."""
        with self._changed:
            self.history.append(record)
            states = [name for name, silo in self.silos.items() if silo.state == "answered"]
            answered = list(record.get("silos", {})) or states
            for name, entry in record.get("silos", {}).items():
                if "clipped_from" in entry:
                    norm = entry["clipped_from"]
                    self.silos[name].reason = f"clipped from norm {norm:.3g} in round {record['round']}"
            self.audit.event("round", round=record["round"], seconds=round(seconds, 3), answered=answered)
            before = self.progress.seconds_a_round
            self.progress.seconds_a_round = seconds if before is None else 0.8 * before + 0.2 * seconds
            self._tell()

    def finish(self, outcome: str) -> None:
        """The run is over; silos are told so when they ask."""
        with self._changed:
            self._posted = None
            self.progress.phase, self.progress.outcome = "ended", outcome
            self.audit.event("ended", outcome=outcome)
            self._tell(workers=True)

    def seen(self, name: str, received: int = 0, sent: int = 0) -> None:
        """A silo was heard of."""
        with self._changed:
            silo = self.silos[name]
            silo.last_seen = self.clock()
            silo.bytes_received += received
            silo.bytes_sent += sent

    def arrived(self, name: str) -> None:
        """A silo comes with a request; one that was lost is back."""
        self.seen(name)
        with self._changed:
            silo = self.silos[name]
            if silo.state == "lost":
                silo.state, silo.reason = "waiting", None
                self.audit.event("returned", silo=name)
                self._tell()

    def join(self, name: str, examples: int) -> Refusal | None:
        """A silo says that it is here."""
        with self._changed:
            silo = self.silos[name]
            if silo.state == "set aside":
                return Refusal(403, f"silo {name!r} was set aside: {silo.reason}")
            self.audit.repeated("joined", {"silo": name}, examples=examples)
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
                self.told.add(name)
                return Refusal(410, f"the run is over: {self.progress.outcome}")
            if silo.state == "not joined":
                return Refusal(409, f"silo {name!r} has not joined; join first")
            posted = self._posted
            if posted is None or name not in posted.request.silos or name in self._answered:
                return None
            if silo.state != "working":
                silo.state = "working"
                self._tell()
            return posted

    def most_bytes(self, name: str, round_: int, step: str, task: str) -> int | Refusal:
        """How large an answer may be, unless it is refused before it is read."""
        with self._changed:
            posted = self._posted
            refusal = self._misplaced(name, round_, step, task)
            if refusal is not None or posted is None:
                return refusal or Refusal(409, "no task is up")
            return posted.most_bytes

    def accept(
        self, name: str, round_: int, step: str, task: str, body: bytes | Body, told: str | None = None
    ) -> Refusal | None:
        """Take a silo's answer to the task that is up; None if taken, now or before.

        `told` is the digest that the silo sent with it, by which a body damaged on its way is found out.
        """
        content = body if isinstance(body, bytes) else body.content()
        digest = content_digest(content)
        if not is_whole(digest, told):
            return Refusal(400, "the body is not the one that its Content-Digest tells of")
        with self._changed:
            posted, known = self._posted, self._answered.get(name)
            refusal = self._misplaced(name, round_, step, task)
        if refusal is not None or posted is None:
            return refusal
        if known is not None:
            return None if known == digest else _OTHER_ANSWER
        try:
            reply = posted.read(content, name)
            self._require_same_count(reply)
        except ProtocolError as error:
            return self._strike(name, str(error))
        with self._changed:
            if self._posted is not posted:
                return Refusal(409, "the task was taken down meanwhile; ask for the next")
            if name in self._answered:
                return None if self._answered[name] == digest else _OTHER_ANSWER
            self._answered[name] = digest
            self._replies.append(hold(reply, posted.read, body))
            silo = self.silos[name]
            silo.reason = None if silo.state == "lost" else silo.reason
            silo.state = "answered"
            silo.loss = reply.numbers.get("loss", silo.loss)
            self._tell()
            return None

    def _misplaced(self, name: str, round_: int, step: str, task: str) -> Refusal | None:
        posted, silo = self._posted, self.silos[name]
        if silo.state == "set aside":
            return Refusal(403, f"silo {name!r} was set aside: {silo.reason}")
        if posted is None or name not in posted.request.silos or task != posted.name:
            return Refusal(409, "no such task is up for this silo; ask for the next")
        if (round_, step) != (posted.request.round, posted.request.step):
            up = f"{posted.request.step!r} of round {posted.request.round}"
            return Refusal(409, f"the task that is up is {up}, not {step!r} of round {round_}")
        return None

    def _require_same_count(self, reply: Reply) -> None:
        """Raise if a silo now counts other examples than it joined with: they may be its weight."""
        joined = self.silos[reply.silo].examples
        told = reply.numbers.get("examples", joined)
        if told != joined:
            raise ProtocolError(f"it tells of {told} examples, and joined with {joined}")

    def _strike(self, name: str, reason: str) -> Refusal:
        """Report nonsense; after three times, go on without the silo."""
        with self._changed:
            silo = self.silos[name]
            silo.strikes += 1
            silo.reason = reason
            self.audit.event("nonsense", silo=name, reason=reason, strikes=silo.strikes)
            if silo.strikes >= STRIKES:
                silo.state = "set aside"
                self.audit.event("set aside", silo=name, reason=reason)
            self._tell(workers=silo.state == "set aside")
            return Refusal(422, f"{reason} ({silo.strikes} of {STRIKES} before the silo is set aside)")

    def about(self) -> dict[str, Any]:
        """The run's manifest and its hash."""
        return {"manifest": self.manifest.model_dump(mode="json"), "hash": self.manifest.hash}

    def over(self) -> bool:
        """Whether the run has ended."""
        return self.progress.outcome is not None

    def _stuck(self) -> bool:
        """Whether the task that is up waits for silos that are gone."""
        posted = self._posted
        return posted is not None and any(self.silos[name].state == "lost" for name in posted.request.silos)

    def snapshot(self) -> dict[str, Any]:
        """All that the page shows beside the history."""
        with self._changed:
            left, phase = None, WAITING if self._stuck() else self.progress.phase
            if self.progress.seconds_a_round is not None and phase not in (WAITING, "ended"):
                left = (self.manifest.rounds - len(self.history)) * self.progress.seconds_a_round
            return {
                "run": self.manifest.run,
                "algorithm": self.manifest.algorithm,
                "rounds": self.manifest.rounds,
                "completed": len(self.history),
                **asdict(self.progress),
                "phase": phase,
                "seconds_left": left,
                "silos": [asdict(silo) for silo in self.silos.values()],
            }
