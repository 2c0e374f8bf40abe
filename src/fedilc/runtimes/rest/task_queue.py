"""The coordinator's task queue: the open request, the replies to it, and the status of each silo.

The training thread opens requests and takes replies; network threads hand out tasks and add replies. Nothing
here depends on HTTP.
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
from fedilc.runtimes.remote.open_request import OpenRequest
from fedilc.runtimes.remote.wire import content_digest, is_whole
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.reply_spool import Body, Spool, SpooledReply, spool_reply
from fedilc.runtimes.rest.status import WAITING, Carriers, Progress, Refusal, SiloStatus

STRIKES = 3
_ABSENT = ("not joined", "lost", "set aside")
_OTHER_REPLY = Refusal(409, "another reply to this task was accepted before")


class TaskQueue:
    """One open request at a time, and its replies. Every method may be called from any thread."""

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
        self.silos = {name: SiloStatus(name) for name in manifest.silos if silos is None or name in silos}
        self.carriers = Carriers(self.silos)
        self.round_timeout: float | None = None
        self.progress = Progress()
        self.history: list[Record] = []
        self.revision = 0
        self.informed: set[str] = set()
        self._join_deadline: float | None = None
        self.open_request: OpenRequest | None = None
        self._asked: frozenset[str] = frozenset()
        self._answered: dict[str, str] = {}
        self.spool = spool or Spool()
        self._replies: deque[SpooledReply] = deque()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._workers: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, from any thread, whenever something changes."""
        self._listeners.append(listener)

    def listen_for_tasks(self, listener: Callable[[], None]) -> None:
        """Call `listener`, from any thread, whenever there may be something new for silos."""
        self._workers.append(listener)

    def _notify(self, workers: bool = False) -> None:
        self.revision += 1
        self._changed.notify_all()
        for listener in self._listeners + (self._workers if workers else []):
            listener()

    def open(self, open_request: OpenRequest, asked: Iterable[str] | None = None) -> None:
        """Open a request in place of any other; `asked` are the silos that must reply, by default all."""
        with self._changed:
            self.open_request, self._answered = open_request, {}
            self._asked = open_request.request.asked if asked is None else frozenset(asked)
            self._replies.clear()
            self.progress.round, self.progress.phase = open_request.request.round, open_request.request.step
            for name in self._asked:
                if self.silos[name].state in ("answered", "working"):
                    self.silos[name].state = "waiting"
            self._notify(workers=True)

    def take_reply(self, seconds: float) -> SpooledReply | None:
        """Return the next reply, or None if none came in time."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._replies) or self._is_settled(), seconds)
            return self._replies.popleft() if self._replies else None

    def _is_settled(self) -> bool:
        """Return whether no silo is left that could still reply."""
        return self.open_request is not None and not any(
            name not in self._answered and self.silos[name].state != "set aside" for name in self._asked
        )

    def is_settled(self) -> bool:
        """Return whether every silo asked has replied or was set aside."""
        with self._changed:
            return not self._replies and self._is_settled()

    def all_gone(self, names: Iterable[str]) -> bool:
        """Return whether all these silos are lost or set aside, which a sub-coordinator may report early."""
        with self._changed:
            return all(self.silos[name].state in ("lost", "set aside") for name in names)

    def mark_late(self, names: Iterable[str]) -> None:
        """Mark silos as late; the request stays open because too few others replied."""
        with self._changed:
            self._mark_lost(names)
            self._notify()

    def _mark_lost(self, names: Iterable[str], reasons: Mapping[str, str] | None = None) -> None:
        for silo in (self.silos[name] for name in names):
            if silo.state not in ("set aside", "lost"):
                silo.state = "lost"
                silo.reason = (reasons or {}).get(silo.name, "did not reply in time")
                self.audit.event("lost", silo=silo.name, round=self.progress.round)

    def show_set_aside(self, round_: int, reasons: Mapping[str, str]) -> None:
        """Show that a round continues without the replies of these silos; the next round asks them again."""
        with self._changed:
            for name, reason in reasons.items():
                self.silos[name].reason = f"set aside in round {round_}: {reason}"
                self.audit.event("set aside", silo=name, round=round_, reason=reason)
            self._notify()

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Continue without these silos until the end of the run."""
        with self._changed:
            for silo in (self.silos[name] for name in reasons):
                if silo.state != "set aside":
                    silo.state, silo.reason = "set aside", reasons[silo.name]
                    self.audit.event("left out", silo=silo.name, reason=silo.reason)
                    self._notify(workers=True)

    def reasons(self, names: Iterable[str]) -> dict[str, str]:
        """Return why silos were lost or set aside."""
        with self._changed:
            chosen = [self.silos[name] for name in names]
            return {
                silo.name: f"set aside: {silo.reason}" if silo.state == "set aside" else silo.reason
                for silo in chosen
                if silo.reason
            }

    def close(self, lost: tuple[str, ...]) -> None:
        """Close the request; the silos in `lost` did not reply in time."""
        with self._changed:
            if self.open_request is not None:
                self.open_request.close()
            self.open_request = None
            self._mark_lost(lost)
            self._notify()

    def wait_for_silos(self, needed: int, patience: float) -> tuple[str, ...]:
        """Wait for at least `needed` silos; return all that have joined and are not lost.

        Silos that have not joined yet are waited for until `patience` seconds after the first call, once.
        """
        if self._join_deadline is None:
            self._join_deadline = time.monotonic() + patience
        deadline = self._join_deadline

        def complete() -> bool:
            awaited = any(silo.state == "not joined" for silo in self.silos.values())
            return len(self._present()) >= needed and (not awaited or time.monotonic() >= deadline)

        with self._changed:
            if not complete():
                self.progress.phase = WAITING
                self._notify()
            while not complete():
                self._require_enough(needed)
                self._changed.wait(min(1.0, max(0.05, deadline - time.monotonic())))
            return tuple(self._present())

    def present(self) -> dict[str, int]:
        """Return the silos that can be asked now, and how many examples each has."""
        with self._changed:
            return self._present()

    def _present(self) -> dict[str, int]:
        present = (silo for silo in self.silos.values() if silo.state not in _ABSENT)
        return {silo.name: silo.examples or 0 for silo in present}

    def _require_enough(self, needed: int) -> None:
        aside = [name for name, silo in self.silos.items() if silo.state == "set aside"]
        if len(self.silos) - len(aside) < needed:
            reasons = "; ".join(f"{name}: {self.silos[name].reason}" for name in aside)
            raise SilosLostError(
                f"{', '.join(aside)} {'was' if len(aside) == 1 else 'were'} set aside ({reasons}), and "
                f"fewer than min_silos={needed} are left; correct the problem there and start again, "
                "or lower min_silos"
            )

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

    def knows(self, name: str) -> bool:
        """Return whether this is a silo of the run, or a sub-coordinator that has joined."""
        with self._changed:
            return name in self.silos or name in self.carriers

    def mark_seen(self, name: str, received: int = 0, sent: int = 0) -> None:
        """Record contact with a silo, or with a sub-coordinator and so with its silos."""
        with self._changed:
            state = self._state(name)
            state.bytes_received += received
            state.bytes_sent += sent
            for silo in (state, *(self.silos[leaf] for leaf in self.carriers.leaves(name))):
                silo.last_seen = self.clock()

    def _state(self, name: str) -> SiloStatus:
        return self.silos[name] if name in self.silos else self.carriers.states[name]

    def _silos_of(self, name: str) -> tuple[str, ...]:
        """Return the silos that a member replies for: itself, or those of a sub-coordinator."""
        return (name,) if name in self.silos else self.carriers.leaves(name)

    def mark_present(self, name: str) -> None:
        """Record a request of a silo; a silo that was lost is present again."""
        self.mark_seen(name)
        with self._changed:
            for silo in (self.silos[silos] for silos in self._silos_of(name)):
                if silo.state == "lost":
                    silo.state, silo.reason = "waiting", None
                    self.audit.event("returned", silo=silo.name)
                    self._notify()

    def join(self, name: str, examples: int) -> Refusal | None:
        """Let a silo join."""
        with self._changed:
            silo = self.silos[name]
            if silo.state == "set aside":
                return _set_aside(silo)
            self.audit.repeated("joined", {"silo": name}, examples=examples)
            self.carriers.release(name)
            silo.examples, silo.reason = examples, None
            silo.state = "waiting"
            self._notify()
            return None

    def join_carrier(self, name: str, leaves: Mapping[str, int], lost: Mapping[str, str]) -> Refusal | None:
        """Let a sub-coordinator join with all its silos' examples; `lost` says why it lost others."""
        with self._changed:
            if name in self.silos:
                return Refusal(422, f"{name!r} is a silo of this run; give the sub-coordinator another name")
            for leaf in leaves:
                if leaf not in self.silos:
                    return Refusal(422, f"no silo of this run is called {leaf[:100]!r}")
            if name in self.carriers and self.carriers.states[name].state == "set aside":
                return _set_aside(self.carriers.states[name])
            self.audit.repeated("joined", {"silo": name}, carries=sorted(leaves))
            self._mark_lost(self.carriers.announce(name, leaves), lost)
            for leaf, examples in leaves.items():
                silo = self.silos[leaf]
                if silo.state in ("not joined", "lost"):
                    silo.state, silo.reason = "waiting", None
                silo.examples = examples
            self._notify(workers=True)
            return None

    def answered(self, name: str) -> tuple[str, list[str]]:
        """Return the open task's name, and which silos of a sub-coordinator have replied to it."""
        with self._changed:
            task = self.open_request.name if self.open_request is not None else ""
            return task, [leaf for leaf in self.carriers.leaves(name) if leaf in self._answered]

    def task_for(self, name: str) -> OpenRequest | Refusal | None:
        """Return the open request, if the silo, or one of a sub-coordinator's silos, has yet to reply."""
        with self._changed:
            state, silos = self._state(name), self._silos_of(name)
            if state.state == "set aside":
                return _set_aside(state)
            if self.progress.outcome is not None:
                self.informed.update((name, *silos))
                return Refusal(410, f"the run is over: {self.progress.outcome}")
            if state.state == "not joined":
                return Refusal(409, f"silo {name!r} has not joined; join first")
            due = self._due(silos)
            if self.open_request is None or not due:
                return None
            for silo in (self.silos[leaf] for leaf in due):
                if silo.state != "working":
                    silo.state = "working"
                    self._notify()
            return self.open_request

    def _due(self, silos: Iterable[str]) -> list[str]:
        """Return those silos that are asked and have not replied."""
        return [silo for silo in silos if silo in self._asked and silo not in self._answered]

    def max_reply_bytes(self, name: str, round_: int, step: str, task: str) -> int | Refusal:
        """Return how large a reply may be, or why it is refused before it is read."""
        with self._changed:
            open_request, silos = self.open_request, self._silos_of(name)
            refusal = self._refusal(name, round_, step, task)
            if refusal is not None or open_request is None:
                return refusal or Refusal(409, "no task is open")
        return open_request.max_bytes if name in self.silos else open_request.max_carried_bytes(len(silos))

    def accept(
        self, name: str, round_: int, step: str, task: str, body: bytes | Body, sent_digest: str | None = None
    ) -> Refusal | None:
        """Accept a silo's reply to the open request; return None if accepted, now or before.

        `sent_digest` is the digest that the silo sent with it, to detect a body damaged on the way.
        """
        content = body if isinstance(body, bytes) else body.content()
        digest = content_digest(content)
        if not is_whole(digest, sent_digest):
            return Refusal(400, "the body does not match its Content-Digest")
        with self._changed:
            open_request, silos = self.open_request, self._silos_of(name)
            refusal = self._refusal(name, round_, step, task)
            due, known = self._due(silos), {self._answered.get(silo) for silo in silos}
        if refusal is not None or open_request is None:
            return refusal
        if digest in known:
            return None
        if not due:
            return _OTHER_REPLY
        if name in self.silos:
            read: Callable[[bytes], Reply | Carried] = partial(open_request.read, silo=name)
        else:
            read = partial(open_request.read_carried, carrier=name, silos=silos, wanted=due)
        try:
            reply = read(content)
            self._require_same_count(reply)
        except ProtocolError as error:
            return self.strike(name, str(error))
        with self._changed:
            if self.open_request is not open_request:
                return Refusal(409, "the task was closed meanwhile; ask for the next")
            if not set(reply.silos) <= set(self._due(self._silos_of(name))):
                same = all(self._answered.get(silo) == digest for silo in reply.silos)
                return None if same else _OTHER_REPLY
            self._record_reply(reply, digest)
            self._replies.append(spool_reply(reply, read, body))
            self._notify()
            return None

    def _record_reply(self, reply: Reply | Carried, digest: str) -> None:
        """Record which silos have replied, and which ones a sub-coordinator has lost."""
        for one in reply.replies.values() if isinstance(reply, Carried) else (reply,):
            self._answered[one.silo] = digest
            silo = self.silos[one.silo]
            silo.reason = None if silo.state == "lost" else silo.reason
            silo.state = "answered"
            silo.loss = one.numbers.get("loss", silo.loss)
        if isinstance(reply, Carried):
            left = [leaf for leaf in self.carriers.leaves(reply.carrier) if leaf not in reply.lost]
            self._mark_lost(self.carriers.announce(reply.carrier, left), reply.lost)

    def _refusal(self, name: str, round_: int, step: str, task: str) -> Refusal | None:
        open_request, state = self.open_request, self._state(name)
        if state.state == "set aside":
            return _set_aside(state)
        if open_request is None or self._asked.isdisjoint(self._silos_of(name)) or task != open_request.name:
            return Refusal(409, "this task is not open for this silo; ask for the next")
        if (round_, step) != (open_request.request.round, open_request.request.step):
            up = f"{open_request.request.step!r} of round {open_request.request.round}"
            return Refusal(409, f"the open task is {up}, not {step!r} of round {round_}")
        return None

    def _require_same_count(self, reply: Reply | Carried) -> None:
        """Raise if a silo now has another number of examples than when it joined: it may be its weight."""
        for one in reply.replies.values() if isinstance(reply, Carried) else (reply,):
            joined = self.silos[one.silo].examples
            now = one.numbers.get("examples", joined)
            if now != joined:
                who = "it" if isinstance(reply, Reply) else f"silo {one.silo!r}"
                raise ProtocolError(f"{who} has {now} examples, and joined with {joined}")

    def strike(self, name: str, reason: str) -> Refusal:
        """Report a reply that is not valid; after three, continue without the silo or sub-coordinator."""
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
            self._notify(workers=state.state == "set aside")
            return Refusal(422, f"{reason} ({state.strikes} of {STRIKES} before the silo is set aside)")

    def about(self) -> dict[str, Any]:
        """Return the run's manifest and its hash."""
        return {"manifest": self.manifest.model_dump(mode="json"), "hash": self.manifest.hash}

    def is_over(self) -> bool:
        """Return whether the run has ended."""
        return self.progress.outcome is not None

    def _stuck(self) -> bool:
        """Return whether the open request waits for lost silos."""
        return self.open_request is not None and any(self.silos[name].state == "lost" for name in self._asked)

    def snapshot(self) -> dict[str, Any]:
        """Return what the page shows besides the history."""
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


def _set_aside(state: SiloStatus) -> Refusal:
    return Refusal(403, f"silo {state.name!r} was set aside: {state.reason}")
