"""What the coordinator knows of each silo and of the run, and why it refuses."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

WAITING = "waiting for silos"
State = Literal["not joined", "waiting", "working", "answered", "lost", "set aside"]


@dataclass
class SiloState:
    """What the coordinator knows of a silo, and by which sub-coordinator it answers, if by any."""

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
    """Why an answer was not taken: an HTTP status and one sentence."""

    status: int
    reason: str


@dataclass
class Progress:
    """Where the run is."""

    round: int = 0
    phase: str = WAITING
    started: float = field(default_factory=time.time)
    seconds_a_round: float | None = None
    outcome: str | None = None
