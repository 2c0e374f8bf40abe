"""The members of a run: its silos, its sub-coordinators, and the status of each.

Network threads let members join and record contact with them; the training thread waits for silos and says
which ones it continues without. One lock, `_changed`, protects everything: methods that take it may call one
another, because its lock is reentrant, and those here whose name begins with _ expect their caller to hold
it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedilc.errors import SilosLostError
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.study_manifest import StudyManifest
from fedilc.runtimes.rest.audit import Audit

STRIKES = 3
CONTACT_SECONDS = 60.0  # a silo or sub-coordinator that waits asks for its next task every 25 seconds
SENT_AWAY_SECONDS = 5.0  # for a silo that is connected elsewhere to learn why it is refused here
_MOST_CLASSES = 100  # per class, rounding may move one more row to validation
WAITING = "waiting for silos"
_ABSENT = ("not joined", "lost", "set aside")
State = Literal["not joined", "waiting", "working", "answered", "lost", "set aside"]


@dataclass
class SiloStatus:
    """What the coordinator knows about a silo.

    `via` is the sub-coordinator that replies for it, if any; `notice` says what is unusual about its replies.
    """

    name: str
    state: State = "not joined"
    examples: int | None = None
    last_seen: float | None = None
    loss: float | None = None
    bytes_received: int = 0
    bytes_sent: int = 0
    strikes: int = 0
    reason: str | None = None
    notice: str | None = None
    via: str | None = None


@dataclass
class Progress:
    """The progress of the run."""

    round: int = 0
    phase: str = WAITING
    started: float | None = field(default_factory=time.time)
    seconds_a_round: float | None = None
    outcome: str | None = None


class RefusedError(Exception):
    """A member's request is refused, with an HTTP status and a reason in one sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Membership:
    """The members of a run. Every method may be called from any thread."""

    def __init__(
        self,
        manifest: Manifest | StudyManifest,
        audit: Audit | None = None,
        silos: Iterable[str] | None = None,
    ) -> None:
        self.manifest = manifest
        self.audit = audit or Audit()
        self.silos = {name: SiloStatus(name) for name in manifest.silos if silos is None or name in silos}
        self.summary_rows: dict[str, tuple[int, int]] = {}
        self.sub_coordinators: dict[str, SiloStatus] = {}
        self.progress = Progress()
        self.revision = 0
        self._join_deadline: float | None = None
        self._sent_away: dict[str, tuple[str, float]] = {}
        self._must_join_again: set[str] = set()
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
        """Wake the training thread and viewers, and silos that wait for a task if `workers`."""
        self.revision += 1
        self._changed.notify_all()
        for listener in self._listeners + (self._workers if workers else []):
            listener()

    def knows(self, name: str) -> bool:
        """Return whether this is a silo of the run, or a sub-coordinator that has joined."""
        with self._changed:
            return name in self.silos or name in self.sub_coordinators

    def _status(self, name: str) -> SiloStatus:
        return self.silos[name] if name in self.silos else self.sub_coordinators[name]

    def _admit(self, name: str) -> SiloStatus:
        """Return the status of a silo or a sub-coordinator; refuse one that was set aside."""
        status = self._status(name)
        if status.state == "set aside":
            raise RefusedError(403, f"silo {name!r} was set aside: {status.reason}")
        return status

    def _silos_of(self, name: str) -> tuple[str, ...]:
        """Return the silos that a member replies for: itself, or those of a sub-coordinator.

        A silo for which a sub-coordinator replies does not reply for itself, even if it asks here too.
        """
        if name in self.silos:
            return (name,) if self.silos[name].via is None else ()
        return tuple(silo.name for silo in self.silos.values() if silo.via == name)

    def _elsewhere(self, name: str, via: str | None) -> str | None:
        """Return why a silo cannot join here, or through a sub-coordinator, now; None if it can.

        A silo that is connected at two places of a tree would count twice. It counts as connected while
        whoever replies for it computes, or has asked for a task in the last minute.
        """
        sentence, until = self._sent_away.get(name, ("", 0.0))
        if time.monotonic() < until:
            return sentence
        silo = self.silos[name]
        if silo.state in _ABSENT or silo.via == via:
            return None
        together = [self.silos[other] for other in self._silos_of(silo.via or name)]
        if time.time() - (silo.last_seen or 0.0) > CONTACT_SECONDS and all(
            other.state != "working" for other in together
        ):
            return None
        where = f"through {silo.via!r}" if silo.via is not None else f"directly, not through {via!r}"
        return (
            f"silo {name!r} is connected elsewhere ({where}); stop it there, or wait until that connection "
            "is gone"
        )

    def send_away(self, reasons: Mapping[str, str]) -> None:
        """Refuse silos that the coordinator above knows to be connected elsewhere, for a few seconds.

        A sub-coordinator below that replies for one of them has to join again, and then learns the reason.
        """
        with self._changed:
            for name, reason in reasons.items():
                silo = self.silos[name]
                if silo.via is not None:
                    self._must_join_again.add(silo.via)
                silo.state, silo.reason, silo.via = "not joined", reason, None
                self._sent_away[name] = reason, time.monotonic() + SENT_AWAY_SECONDS
            if reasons:
                self._notify(workers=True)

    def join(self, name: str, examples: int | None) -> None:
        """Let a silo join, which replies for itself from now on; refuse one that is connected elsewhere.

        With secure sums a silo does not say how many examples it has.
        """
        with self._changed:
            silo, elsewhere = self._admit(name), self._elsewhere(name, None)
            if elsewhere is not None:
                raise RefusedError(409, elsewhere)
            if examples is not None:
                self._require_surveyed(name, examples)
            self.audit.repeated("joined", {"silo": name}, examples=examples)
            silo.examples, silo.reason, silo.via = examples, None, None
            silo.state = "waiting"
            self._notify()

    def _require_surveyed(self, name: str, examples: int) -> None:
        """Refuse a silo whose summary does not fit the number of examples that it trains on.

        At most nine tenths of the rows are held out for validation, rounded in each class.
        """
        rows, unit = self.summary_rows.get(name, (examples, 1))
        # Each of k classes keeps a tenth of its rows up to rounding, so that examples >= rows / 10 - k.
        if not examples - unit <= rows <= 10 * (examples + _MOST_CLASSES) + unit:
            reason = f"its summary has {rows} rows, and it joins with {examples} examples to train on"
            self.audit.event("summary refused", silo=name, reason=reason)
            raise RefusedError(
                403, f"silo {name!r} is refused: {reason}; a table must not change within a run"
            )

    def join_sub_coordinator(
        self, name: str, silos: Mapping[str, int], lost: Mapping[str, str]
    ) -> dict[str, str]:
        """Let a sub-coordinator join with all its silos' examples; `lost` says why it lost others.

        Return the silos that it does not get, because they are connected elsewhere, with a sentence on each.
        With no silos and no lost ones, only check that it may join.
        """
        with self._changed:
            if name in self.silos:
                raise RefusedError(
                    422, f"{name!r} is a silo of this run; give the sub-coordinator another name"
                )
            if (refused := self._needs_replies()) is not None:
                raise RefusedError(422, f"{refused}; let the silos join this coordinator themselves")
            for silo in silos:
                if silo not in self.silos:
                    raise RefusedError(422, f"no silo of this run is called {silo[:100]!r}")
            if name in self.sub_coordinators:
                self._admit(name)
            if not silos and not lost:
                return {}
            found = {silo: self._elsewhere(silo, name) for silo in silos}
            elsewhere = {silo: reason for silo, reason in found.items() if reason is not None}
            silos = {silo: examples for silo, examples in silos.items() if silo not in elsewhere}
            self.sub_coordinators.setdefault(name, SiloStatus(name, "waiting"))
            # This is the new join that `send_away` asks for.
            self._must_join_again.discard(name)
            self.audit.repeated("joined", {"silo": name}, carries=sorted(silos))
            self._assign(name, silos, lost)
            for status, examples in ((self.silos[silo], examples) for silo, examples in silos.items()):
                if status.state in ("not joined", "lost"):
                    status.state, status.reason = "waiting", None
                status.examples, status.last_seen = examples, time.time()
            self._notify(workers=True)
            return elsewhere

    def _needs_replies(self) -> str | None:
        """Return why each silo must reply for itself; None if a sub-coordinator may add replies up."""
        if isinstance(self.manifest, StudyManifest):
            return "a study leaves silos out in turn, which the sums of a sub-coordinator would hide"
        if self.manifest.program.keeps_replies:
            inter = self.manifest.choices.name("inter")
            return f"inter={inter!r} needs each silo's own reply, and a sub-coordinator sends sums"
        if self.manifest.secure:
            return "secure sums are made between the silos and one coordinator"
        return None

    def _assign(self, name: str, silos: Collection[str], lost: Mapping[str, str]) -> None:
        """Set all silos that a sub-coordinator replies for; those that it no longer has are lost.

        A silo belongs to the sub-coordinator that named it last. A sub-coordinator without silos is removed,
        unless it was set aside.
        """
        gone = [silo for silo in self._silos_of(name) if silo not in silos]
        for silo in (*gone, *silos):
            self.silos[silo].via = name if silo in silos else None
        self._mark_lost(gone, lost)
        used = {name, *(silo.via for silo in self.silos.values())}
        self.sub_coordinators = {
            other: status
            for other, status in self.sub_coordinators.items()
            if other in used or status.state == "set aside"
        }

    def mark_seen(self, name: str, received: int = 0, sent: int = 0) -> None:
        """Record contact with a silo, or with a sub-coordinator and so with its silos."""
        with self._changed:
            status = self._status(name)
            status.bytes_received += received
            status.bytes_sent += sent
            own = [] if name in self.silos else [status]
            for one in (*own, *(self.silos[silo] for silo in self._silos_of(name))):
                one.last_seen = time.time()

    def mark_present(self, name: str) -> None:
        """Record a request of a silo; a silo that was lost is present again."""
        self.mark_seen(name)
        with self._changed:
            for silo in (self.silos[silo] for silo in self._silos_of(name)):
                if silo.state == "lost":
                    silo.state, silo.reason = "waiting", None
                    self.audit.event("returned", silo=silo.name)
                    self._notify()

    def present(self) -> dict[str, int]:
        """Return the silos that can be asked now, and how many examples each has."""
        with self._changed:
            present = (silo for silo in self.silos.values() if silo.state not in _ABSENT)
            return {silo.name: silo.examples or 0 for silo in present}

    def wait_for_silos(self, needed: int, patience: float) -> tuple[str, ...]:
        """Wait for at least `needed` silos; return all that have joined and are not lost.

        Silos that have not joined yet are waited for until `patience` seconds after the first call, once.
        """
        if self._join_deadline is None:
            self._join_deadline = time.monotonic() + patience
        deadline = self._join_deadline

        def complete() -> bool:
            awaited = any(silo.state == "not joined" for silo in self.silos.values())
            return len(self.present()) >= needed and (not awaited or time.monotonic() >= deadline)

        with self._changed:
            if not complete():
                self.progress.phase = WAITING
                self._notify()
            while not complete():
                self._require_enough(needed)
                self._changed.wait(min(1.0, max(0.05, deadline - time.monotonic())))
            return tuple(self.present())

    def _require_enough(self, needed: int) -> None:
        aside = [name for name, silo in self.silos.items() if silo.state == "set aside"]
        if len(self.silos) - len(aside) < needed:
            reasons = "; ".join(f"{name}: {self.silos[name].reason}" for name in aside)
            raise SilosLostError(
                f"{', '.join(aside)} {'was' if len(aside) == 1 else 'were'} set aside ({reasons}), so "
                f"fewer than min_silos={needed} are left; correct the problem there and start again, "
                "or lower min_silos"
            )

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

    def set_aside_in_round(self, round_: int, reasons: Mapping[str, str]) -> None:
        """Show that one round continues without these silos' replies; the next round asks them again."""
        with self._changed:
            for name, reason in reasons.items():
                self.silos[name].reason = f"set aside in round {round_}: {reason}"
                self.audit.event("set aside", silo=name, round=round_, reason=reason)
            self._notify()

    def leave_out_of_run(self, reasons: Mapping[str, str]) -> None:
        """Continue without these silos until the end of the run; their state becomes "set aside"."""
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

    def note(self, name: str, reason: str) -> None:
        """Show why a silo does not answer as asked, which is not its fault."""
        with self._changed:
            self._status(name).reason = reason
            self._notify()

    def strike(self, name: str, reason: str) -> RefusedError:
        """Count a reply that is not valid, and return its refusal; after three, set its sender aside."""
        with self._changed:
            status = self._status(name)
            status.strikes += 1
            status.reason = reason
            self.audit.event("nonsense", silo=name, reason=reason, strikes=status.strikes)
            if status.strikes >= STRIKES:
                self.audit.event("set aside", silo=name, reason=reason)
                sender = "" if name in self.silos else f"sub-coordinator {name!r}: "
                for silo in (self.silos[silo] for silo in self._silos_of(name)):
                    silo.state, silo.reason = "set aside", f"{sender}{reason}"
                status.state, status.reason = "set aside", reason
            self._notify(workers=status.state == "set aside")
            who = "the silo is" if name in self.silos else f"sub-coordinator {name!r} and its silos are"
            return RefusedError(422, f"{reason} ({status.strikes} of {STRIKES} before {who} set aside)")
