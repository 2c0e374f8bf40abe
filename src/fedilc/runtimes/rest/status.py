"""The status of each silo, of sub-coordinators and of the run, as the coordinator knows it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

WAITING = "waiting for silos"
State = Literal["not joined", "waiting", "working", "answered", "lost", "set aside"]


@dataclass
class SiloStatus:
    """What the coordinator knows about a silo; `via` is the sub-coordinator that replies for it, if any."""

    name: str
    state: State = "not joined"
    examples: int | None = None
    last_seen: float | None = None
    loss: float | None = None
    bytes_received: int = 0
    bytes_sent: int = 0
    strikes: int = 0
    reason: str | None = None
    via: str | None = None


@dataclass(frozen=True)
class Refusal:
    """Why a request was refused: an HTTP status and one sentence."""

    status: int
    reason: str


@dataclass
class Progress:
    """The progress of the run."""

    round: int = 0
    phase: str = WAITING
    started: float = field(default_factory=time.time)
    seconds_a_round: float | None = None
    outcome: str | None = None


class Carriers:
    """The sub-coordinators that have joined, and the silos that each of them has now.

    A silo belongs to the one that announced it last, and to none once it has joined itself.
    """

    def __init__(self, silos: Mapping[str, SiloStatus]) -> None:
        self.silos = silos
        self.states: dict[str, SiloStatus] = {}
        self._of: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.states

    def leaves(self, name: str) -> tuple[str, ...]:
        """Return the silos that a sub-coordinator has now; none if this is not a sub-coordinator."""
        return tuple(silo for silo, carrier in self._of.items() if carrier == name)

    def announce(self, name: str, leaves: Iterable[str]) -> tuple[str, ...]:
        """Set all silos that a sub-coordinator has; return those that it no longer has."""
        self.states.setdefault(name, SiloStatus(name, "waiting"))
        now = dict.fromkeys(leaves)
        gone = tuple(silo for silo in self.leaves(name) if silo not in now)
        for silo in gone:
            del self._of[silo]
        for silo in now:
            self._of[silo] = name
            self.silos[silo].via = name
        for other in [other for other in self.states if other != name and not self.leaves(other)]:
            if self.states[other].state != "set aside":
                del self.states[other]
        return gone

    def release(self, silo: str) -> None:
        """Let a silo reply for itself."""
        self._of.pop(silo, None)
        self.silos[silo].via = None
