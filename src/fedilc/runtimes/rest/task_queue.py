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
from functools import partial
from typing import Any

from fedilc.errors import ProtocolError, SilosLostError
from fedilc.federation import Carried, Record, Reply
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.open_request import Posted
from fedilc.runtimes.remote.wire import content_digest, is_whole
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.carriers import Carriers
from fedilc.runtimes.rest.reply_spool import Body, HeldReply, Spool, hold
from fedilc.runtimes.rest.status import WAITING, Progress, Refusal, SiloState

STRIKES = 3
_ABSENT = ("not joined", "lost", "set aside")
_OTHER_ANSWER = Refusal(409, "another answer to this task was taken before")


class Board:
    """Tasks up, answers in. Every method may be called from any thread."""

    def __init__(
        self,
        manifest: Manifest,
        clock: Callable[[], float] = time.time,
        audit: Audit | None = None,
        spool: Spool | None = None,
        silos: Iterable[str] | None = None,
    ) -> None:
        self.manifest = manifest
        self.audit = audit or Audit()
        self.clock = clock
        self.silos = {name: SiloState(name) for name in manifest.silos if silos is None or name in silos}
        self.carriers = Carriers(self.silos)
        self.round_timeout: float | None = None
        self.progress = Progress()
        self.history: list[Record] = []
        self.revision = 0
        self.told: set[str] = set()
        self._patient_until: float | None = None
        self._posted: Posted | None = None
        self._asked: frozenset[str] = frozenset()
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

    def post(self, posted: Posted, asked: Iterable[str] | None = None) -> None:
        """Put a task up, in place of any other; `asked` are the silos that are to answer here, or all."""
        with self._changed:
            self._posted, self._answered = posted, {}
            self._asked = posted.request.asked if asked is None else frozenset(asked)
            self._replies.clear()
            self.progress.round, self.progress.phase = posted.request.round, posted.request.step
            for name in self._asked:
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
        return self._posted is not None and not any(
            name not in self._answered and self.silos[name].state != "set aside" for name in self._asked
        )

    def hopeless(self) -> bool:
        """Whether every silo asked has answered or was set aside."""
        with self._changed:
            return not self._replies and self._hopeless()

    def gone(self, names: Iterable[str]) -> bool:
        """Whether all of these are lost or set aside: a sub-coordinator tells of a loss before it is late."""
        with self._changed:
            return all(self.silos[name].state in ("lost", "set aside") for name in names)

    def overdue(self, names: Iterable[str]) -> None:
        """Those named did not answer in time, but the task stays up because too few others did."""
        with self._changed:
            self._lose(names)
            self._tell()

    def _lose(self, names: Iterable[str], reasons: Mapping[str, str] | None = None) -> None:
        for silo in (self.silos[name] for name in names):
            if silo.state not in ("set aside", "lost"):
                silo.state = "lost"
                silo.reason = (reasons or {}).get(silo.name, "did not answer in time")
                self.audit.event("lost", silo=silo.name, round=self.progress.round)

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

        def complete() -> bool:
            awaited = any(silo.state == "not joined" for silo in self.silos.values())
            return len(self._here()) >= needed and (not awaited or time.monotonic() >= deadline)

        with self._changed:
            if not complete():
                self.progress.phase = WAITING
                self._tell()
            while not complete():
                self._require_able(needed)
                self._changed.wait(min(1.0, max(0.05, deadline - time.monotonic())))
            return tuple(self._here())

    def here(self) -> dict[str, int]:
        """The silos that can be asked now, and how many examples each has."""
        with self._changed:
            return self._here()

    def _here(self) -> dict[str, int]:
        there = (silo for silo in self.silos.values() if silo.state not in _ABSENT)
        return {silo.name: silo.examples or 0 for silo in there}

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

    def knows(self, name: str) -> bool:
        """Whether this is a silo of the run, or a sub-coordinator that has joined."""
        with self._changed:
            return name in self.silos or name in self.carriers

    def seen(self, name: str, received: int = 0, sent: int = 0) -> None:
        """A silo was heard of, or a sub-coordinator and so its silos."""
        with self._changed:
            state = self._state(name)
            state.bytes_received += received
            state.bytes_sent += sent
            for silo in (state, *(self.silos[leaf] for leaf in self.carriers.leaves(name))):
                silo.last_seen = self.clock()

    def _state(self, name: str) -> SiloState:
        return self.silos[name] if name in self.silos else self.carriers.states[name]

    def _behind(self, name: str) -> tuple[str, ...]:
        """The silos that somebody answers for: itself, or those of a sub-coordinator."""
        return (name,) if name in self.silos else self.carriers.leaves(name)

    def arrived(self, name: str) -> None:
        """A silo comes with a request; one that was lost is back."""
        self.seen(name)
        with self._changed:
            for silo in (self.silos[behind] for behind in self._behind(name)):
                if silo.state == "lost":
                    silo.state, silo.reason = "waiting", None
                    self.audit.event("returned", silo=silo.name)
                    self._tell()

    def join(self, name: str, examples: int) -> Refusal | None:
        """A silo says that it is here."""
        with self._changed:
            silo = self.silos[name]
            if silo.state == "set aside":
                return _set_aside(silo)
            self.audit.repeated("joined", {"silo": name}, examples=examples)
            self.carriers.release(name)
            silo.examples, silo.reason = examples, None
            silo.state = "waiting"
            self._tell()
            return None

    def join_carrier(self, name: str, leaves: Mapping[str, int], lost: Mapping[str, str]) -> Refusal | None:
        """A sub-coordinator tells of all silos that it has now, with examples, and why others are lost."""
        with self._changed:
            if name in self.silos:
                return Refusal(
                    422, f"{name!r} is a silo of this run; a sub-coordinator has a name of its own"
                )
            for leaf in leaves:
                if leaf not in self.silos:
                    return Refusal(422, f"no silo of this run is called {leaf[:100]!r}")
            if name in self.carriers and self.carriers.states[name].state == "set aside":
                return _set_aside(self.carriers.states[name])
            self.audit.repeated("joined", {"silo": name}, carries=sorted(leaves))
            self._lose(self.carriers.tell(name, leaves), lost)
            for leaf, examples in leaves.items():
                silo = self.silos[leaf]
                if silo.state in ("not joined", "lost"):
                    silo.state, silo.reason = "waiting", None
                silo.examples = examples
            self._tell(workers=True)
            return None

    def answered(self, name: str) -> tuple[str, list[str]]:
        """The task that is up, and which of a sub-coordinator's silos have answered it."""
        with self._changed:
            task = self._posted.name if self._posted is not None else ""
            return task, [leaf for leaf in self.carriers.leaves(name) if leaf in self._answered]

    def task_for(self, name: str) -> Posted | Refusal | None:
        """The task that is up for a silo and that it has not answered; for one or more of a carrier's."""
        with self._changed:
            state, behind = self._state(name), self._behind(name)
            if state.state == "set aside":
                return _set_aside(state)
            if self.progress.outcome is not None:
                self.told.update((name, *behind))
                return Refusal(410, f"the run is over: {self.progress.outcome}")
            if state.state == "not joined":
                return Refusal(409, f"silo {name!r} has not joined; join first")
            due = self._due(behind)
            if self._posted is None or not due:
                return None
            for silo in (self.silos[leaf] for leaf in due):
                if silo.state != "working":
                    silo.state = "working"
                    self._tell()
            return self._posted

    def _due(self, silos: Iterable[str]) -> list[str]:
        """Those of some silos that are asked and have not answered."""
        return [silo for silo in silos if silo in self._asked and silo not in self._answered]

    def most_bytes(self, name: str, round_: int, step: str, task: str) -> int | Refusal:
        """How large an answer may be, unless it is refused before it is read."""
        with self._changed:
            posted, behind = self._posted, self._behind(name)
            refusal = self._misplaced(name, round_, step, task)
            if refusal is not None or posted is None:
                return refusal or Refusal(409, "no task is up")
        return posted.most_bytes if name in self.silos else posted.most_carried_bytes(len(behind))

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
            posted, behind = self._posted, self._behind(name)
            refusal = self._misplaced(name, round_, step, task)
            due, known = self._due(behind), {self._answered.get(silo) for silo in behind}
        if refusal is not None or posted is None:
            return refusal
        if digest in known:
            return None
        if not due:
            return _OTHER_ANSWER
        if name in self.silos:
            read: Callable[[bytes], Reply | Carried] = partial(posted.read, silo=name)
        else:
            read = partial(posted.read_carried, carrier=name, silos=behind, wanted=due)
        try:
            reply = read(content)
            self._require_same_count(reply)
        except ProtocolError as error:
            return self._strike(name, str(error))
        with self._changed:
            if self._posted is not posted:
                return Refusal(409, "the task was taken down meanwhile; ask for the next")
            if not set(reply.silos) <= set(self._due(self._behind(name))):
                same = all(self._answered.get(silo) == digest for silo in reply.silos)
                return None if same else _OTHER_ANSWER
            self._take(reply, digest)
            self._replies.append(hold(reply, read, body))
            self._tell()
            return None

    def _take(self, reply: Reply | Carried, digest: str) -> None:
        """Take note of who has answered, and of those that a sub-coordinator has lost."""
        for one in reply.replies.values() if isinstance(reply, Carried) else (reply,):
            self._answered[one.silo] = digest
            silo = self.silos[one.silo]
            silo.reason = None if silo.state == "lost" else silo.reason
            silo.state = "answered"
            silo.loss = one.numbers.get("loss", silo.loss)
        if isinstance(reply, Carried):
            left = [leaf for leaf in self.carriers.leaves(reply.carrier) if leaf not in reply.lost]
            self._lose(self.carriers.tell(reply.carrier, left), reply.lost)

    def _misplaced(self, name: str, round_: int, step: str, task: str) -> Refusal | None:
        posted, state = self._posted, self._state(name)
        if state.state == "set aside":
            return _set_aside(state)
        if posted is None or self._asked.isdisjoint(self._behind(name)) or task != posted.name:
            return Refusal(409, "no such task is up for this silo; ask for the next")
        if (round_, step) != (posted.request.round, posted.request.step):
            up = f"{posted.request.step!r} of round {posted.request.round}"
            return Refusal(409, f"the task that is up is {up}, not {step!r} of round {round_}")
        return None

    def _require_same_count(self, reply: Reply | Carried) -> None:
        """Raise if a silo now counts other examples than it joined with: they may be its weight."""
        for one in reply.replies.values() if isinstance(reply, Carried) else (reply,):
            joined = self.silos[one.silo].examples
            told = one.numbers.get("examples", joined)
            if told != joined:
                who = "it" if isinstance(reply, Reply) else f"silo {one.silo!r}"
                raise ProtocolError(f"{who} tells of {told} examples, and joined with {joined}")

    def _strike(self, name: str, reason: str) -> Refusal:
        """Report nonsense; after three times, go on without the silo, or without the sub-coordinator's."""
        with self._changed:
            state = self._state(name)
            state.strikes += 1
            state.reason = reason
            self.audit.event("nonsense", silo=name, reason=reason, strikes=state.strikes)
            if state.strikes >= STRIKES:
                self.audit.event("set aside", silo=name, reason=reason)
                state.state = "set aside"
                for silo in (self.silos[leaf] for leaf in self.carriers.leaves(name)):
                    silo.state, silo.reason = "set aside", f"{name}: {reason}"
            self._tell(workers=state.state == "set aside")
            return Refusal(422, f"{reason} ({state.strikes} of {STRIKES} before the silo is set aside)")

    def about(self) -> dict[str, Any]:
        """The run's manifest and its hash."""
        return {"manifest": self.manifest.model_dump(mode="json"), "hash": self.manifest.hash}

    def over(self) -> bool:
        """Whether the run has ended."""
        return self.progress.outcome is not None

    def _stuck(self) -> bool:
        """Whether the task that is up waits for silos that are gone."""
        return self._posted is not None and any(self.silos[name].state == "lost" for name in self._asked)

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
                "carriers": [asdict(carrier) for carrier in self.carriers.states.values()],
            }


def _set_aside(state: SiloState) -> Refusal:
    return Refusal(403, f"silo {state.name!r} was set aside: {state.reason}")
