"""Who takes part in a run: the silos, the sub-coordinators, and the status of each.

Network threads let members join and record contact with them; the training thread waits for silos and says
which ones it goes on without. Nothing here depends on HTTP.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from fedilc.errors import SilosLostError
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.status import WAITING, Carriers, Progress, Refusal, SiloStatus

STRIKES = 3
_ABSENT = ("not joined", "lost", "set aside")


class Membership:
    """The members of a run. Every method may be called from any thread."""

    def __init__(
        self,
        manifest: Manifest,
        clock: Callable[[], float] = time.time,
        audit: Audit | None = None,
        silos: Iterable[str] | None = None,
    ) -> None:
        self.manifest = manifest
        self.audit = audit or Audit()
        self.clock = clock
        self.silos = {name: SiloStatus(name) for name in manifest.silos if silos is None or name in silos}
        self.carriers = Carriers(self.silos)
        self.progress = Progress()
        self.revision = 0
        self._join_deadline: float | None = None
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

    def knows(self, name: str) -> bool:
        """Return whether this is a silo of the run, or a sub-coordinator that has joined."""
        with self._changed:
            return name in self.silos or name in self.carriers

    def _state(self, name: str) -> SiloStatus:
        return self.silos[name] if name in self.silos else self.carriers.states[name]

    def _silos_of(self, name: str) -> tuple[str, ...]:
        """Return the silos that a member replies for: itself, or those of a sub-coordinator."""
        return (name,) if name in self.silos else self.carriers.leaves(name)

    def join(self, name: str, examples: int) -> Refusal | None:
        """Let a silo join."""
        with self._changed:
            silo = self.silos[name]
            if silo.state == "set aside":
                return set_aside(silo)
            self.audit.repeated("joined", {"silo": name}, examples=examples)
            self.carriers.release(name)
            silo.examples, silo.reason = examples, None
            silo.state = "waiting"
            self._notify()
            return None

    def join_sub_coordinator(
        self, name: str, leaves: Mapping[str, int], lost: Mapping[str, str]
    ) -> Refusal | None:
        """Let a sub-coordinator join with all its silos' examples; `lost` says why it lost others."""
        with self._changed:
            if name in self.silos:
                return Refusal(422, f"{name!r} is a silo of this run; give the sub-coordinator another name")
            for leaf in leaves:
                if leaf not in self.silos:
                    return Refusal(422, f"no silo of this run is called {leaf[:100]!r}")
            if name in self.carriers and self.carriers.states[name].state == "set aside":
                return set_aside(self.carriers.states[name])
            self.audit.repeated("joined", {"silo": name}, carries=sorted(leaves))
            self._mark_lost(self.carriers.announce(name, leaves), lost)
            for leaf, examples in leaves.items():
                silo = self.silos[leaf]
                if silo.state in ("not joined", "lost"):
                    silo.state, silo.reason = "waiting", None
                silo.examples = examples
            self._notify(workers=True)
            return None

    def mark_seen(self, name: str, received: int = 0, sent: int = 0) -> None:
        """Record contact with a silo, or with a sub-coordinator and so with its silos."""
        with self._changed:
            state = self._state(name)
            state.bytes_received += received
            state.bytes_sent += sent
            for silo in (state, *(self.silos[leaf] for leaf in self.carriers.leaves(name))):
                silo.last_seen = self.clock()

    def mark_present(self, name: str) -> None:
        """Record a request of a silo; a silo that was lost is present again."""
        self.mark_seen(name)
        with self._changed:
            for silo in (self.silos[silos] for silos in self._silos_of(name)):
                if silo.state == "lost":
                    silo.state, silo.reason = "waiting", None
                    self.audit.event("returned", silo=silo.name)
                    self._notify()

    def present(self) -> dict[str, int]:
        """Return the silos that can be asked now, and how many examples each has."""
        with self._changed:
            return self._present()

    def _present(self) -> dict[str, int]:
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
            return len(self._present()) >= needed and (not awaited or time.monotonic() >= deadline)

        with self._changed:
            if not complete():
                self.progress.phase = WAITING
                self._notify()
            while not complete():
                self._require_enough(needed)
                self._changed.wait(min(1.0, max(0.05, deadline - time.monotonic())))
            return tuple(self._present())

    def _require_enough(self, needed: int) -> None:
        aside = [name for name, silo in self.silos.items() if silo.state == "set aside"]
        if len(self.silos) - len(aside) < needed:
            reasons = "; ".join(f"{name}: {self.silos[name].reason}" for name in aside)
            raise SilosLostError(
                f"{', '.join(aside)} {'was' if len(aside) == 1 else 'were'} set aside ({reasons}), and "
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


def set_aside(state: SiloStatus) -> Refusal:
    """Return the refusal that a member gets after it was set aside."""
    return Refusal(403, f"silo {state.name!r} was set aside: {state.reason}")
