"""Find silos that do not fit: norms far above the usual, and updates that point against the others.

`NormBound` sets aside replies that are too long, `Opposition` notices silos whose updates point against those
of most others, and `suspects` names silos after an update that failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import Any

import torch
from torch import Tensor

from fedilc.aggregation import norm_of
from fedilc.aggregation.base import wide_dtype

RECENT_ROUNDS = 10
MIN_SILOS = 2
MIN_JUDGED = 3
STRIKES = 3
AGAINST_ROUNDS = 10
LONG, LONG_ROUNDS = 8.0, 3
_SUSPECT, _PAST_SUSPECT = 10.0, 5.0
_FADING = 0.9
_OPPOSED = -0.1
_MAX_MULTIPLE = 1e9
_DIGITS = 6

Norms = Mapping[str, float]


@dataclass
class NormBound:
    """A bound on norms: `factor` times the usual norm; 0 is no bound.

    A reply is an outlier if its norm is above `factor` times the median of the round's norms, and above
    `factor` times the median of the last ten rounds' medians. For an even number of norms, the median is the
    lower of the middle two, so that one of two silos cannot raise it. A single silo is compared with its
    last rounds only, and in the first round with nothing. Groups that nearly cancel (the terms of a penalty)
    may be E times as long as usual, so their bound is E times higher.

    A silo whose replies were set aside in three rounds is left out of the rest of the run.

    `past` holds the longest update of each silo in earlier rounds, as a multiple of the round's median; it
    fades by a tenth per round, and multiples below 2 are not kept. If w is extreme, `past` says which silo
    made it extreme.

    `long` counts in how many rounds in a row the update of a silo was over 8 times the median. That deserves
    a warning and no more: honest silos are found there, too (docs/explanation/security.md).
    """

    factor: float = 100.0
    recent: dict[str, list[float]] = field(default_factory=dict)
    set_aside: dict[str, list[str]] = field(default_factory=dict)
    past: dict[str, float] = field(default_factory=dict)
    long: dict[str, int] = field(default_factory=dict)

    def outliers(self, kind: str, norms: Norms, cancels: bool = False) -> dict[str, str]:
        """Return the silos whose norm of this kind of tensors is above the bound, and why."""
        typical = self.usual(kind, norms)
        bound = math.inf
        if self.factor and 0.0 < typical < math.inf:
            bound = self.factor * typical * (len(norms) if cancels else 1)
        return {
            silo: f"its {kind} has norm {norm:.3g}, typically {typical:.3g}"
            for silo, norm in norms.items()
            if norm > bound or norm == math.inf
        }

    def usual(self, kind: str, norms: Norms) -> float:
        """Return the larger of the median of a round's norms and the median of the last rounds' medians."""
        before = self.recent.get(kind)
        medians = [median_low(before)] if before else []
        if len(norms) >= MIN_SILOS:
            medians.append(median_low(norms.values()))
        return max(medians, default=0.0)

    def remember(self, norms: Mapping[str, Norms], update: str) -> dict[str, float]:
        """Return the medians of a round's norms by kind, and store them to compare later rounds with.

        `update` is the kind of which `past` is kept.
        """
        medians = {kind: float(f"{median_low(found.values()):.{_DIGITS}g}") for kind, found in norms.items()}
        self._add(medians)
        usual = median_low(norms[update].values())
        found = {silo: _FADING * multiple for silo, multiple in self.past.items()}
        for silo, norm in norms[update].items() if usual else ():
            found[silo] = max(min(norm / usual, _MAX_MULTIPLE), found.get(silo, 0.0))
        self.past = {silo: float(f"{n:.{_DIGITS}g}") for silo, n in found.items() if n >= 2.0}
        return medians

    def note_long(self, norms: Norms) -> dict[str, str]:
        """Count the silos whose updates are long in this round; return those of three rounds in a row."""
        usual = median_low(norms.values())
        multiples = {s: norm / usual for s, norm in norms.items() if self.factor and norm > LONG * usual > 0}
        self.long = {silo: self.long.get(silo, 0) + 1 for silo in multiples}
        return {
            silo: f"for {LONG_ROUNDS} rounds its updates have been over {LONG:g} times as long as the median"
            f", now {multiple:.3g} times"
            for silo, multiple in multiples.items()
            if self.long[silo] == LONG_ROUNDS
        }

    def past_suspect(self, silos: Iterable[str]) -> dict[str, str]:
        """Return the silo with the longest updates in the last rounds, if they were long."""
        silo = max(silos, key=lambda name: self.past.get(name, 0.0), default="")
        if self.past.get(silo, 0.0) < _PAST_SUSPECT:
            return {}
        multiple = f"{self.past[silo]:.3g}"
        return {silo: f"its updates of the last rounds were up to {multiple} times as long as the median"}

    def strike(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Count the silos that a round sets aside; return the reasons, extended if a silo is left out now."""
        found: dict[str, str] = {}
        for silo, reason in reasons.items():
            before = self.set_aside.setdefault(silo, [])
            last = f"; left out from now on, after {STRIKES} such rounds"
            found[silo] = reason + last if len(before) + 1 == STRIKES else reason
            before.append(found[silo])
        return found

    @property
    def left_out(self) -> dict[str, str]:
        """Return the silos that are left out of the rest of the run, and why."""
        return {silo: found[-1] for silo, found in self.set_aside.items() if len(found) >= STRIKES}

    def restore(self, history: Iterable[Mapping[str, Any]], past: Mapping[str, float]) -> None:
        """Restore medians and counts from a history, and `past` from a checkpoint."""
        self.recent, self.set_aside, self.past = {}, {}, dict(past)
        for record in history:
            self._add(record.get("norms", {}))
            for silo, reason in record.get("set_aside", {}).items():
                self.set_aside.setdefault(silo, []).append(reason)

    def _add(self, medians: Mapping[str, float]) -> None:
        for kind, value in medians.items():
            self.recent[kind] = [*self.recent.get(kind, []), value][-RECENT_ROUNDS:]


@dataclass
class Opposition:
    """Notice silos whose updates point against those of most others, round after round.

    The cosine of a silo's update is taken with the update of w in the round before, so that no reply is kept.
    A single silo may turn that update around: the others then have negative cosines, and it alone a positive
    one. So a silo is opposed to the others if the sign of its cosine is not that of the median, and the
    cosine is at least 0.1 in size. After ten such rounds in a row it is noticed. This proves nothing, because
    an honest silo whose examples are of another kind may be noticed too; it changes no weights.

    Args:
        direction: the last update of w, of unit length, as float16, which is exact enough and small in a
            checkpoint; empty before the first update.
        rounds: in how many rounds in a row silos were opposed, without those that were not.
    """

    direction: Mapping[str, Tensor] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)

    def judge(self, cosines: Mapping[str, float]) -> dict[str, int]:
        """Count the round for the silos that it finds opposed; return those noticed, with their rounds."""
        if len(cosines) < MIN_JUDGED:
            return {}
        sign = math.copysign(1.0, median(cosines.values()))
        for silo, cosine in cosines.items():
            before = self.rounds.pop(silo, 0)
            if sign * cosine < _OPPOSED:
                self.rounds[silo] = before + 1
        return {silo: count for silo in cosines if (count := self.rounds.get(silo, 0)) >= AGAINST_ROUNDS}

    def remember(self, update: Mapping[str, Tensor]) -> None:
        """Store the direction of an update of w."""
        norm = norm_of(update)
        if 0.0 < norm < math.inf:
            self.direction = {name: (tensor / norm).to(torch.float16) for name, tensor in update.items()}


def cosine_to(direction: Mapping[str, Tensor], values: Mapping[str, Tensor], norm: float) -> float:
    """Return the cosine between tensors of this norm and a direction of unit length; 0 if it is undefined.

    >>> cosine_to({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([3.0, -4.0])}, 5.0)
    0.6
    """
    if not 0.0 < norm < math.inf:
        return 0.0
    dots = ((values[name] * part).sum(dtype=wide_dtype(part.device)) for name, part in direction.items())
    return sum(float(dot) for dot in dots) / norm


def against_sentence(rounds: int) -> str:
    """Return what to say of a silo that was opposed to the others in this many rounds in a row."""
    return f"for {rounds} rounds its updates have pointed against those of most other silos"


def suspects(norms: Mapping[str, Norms]) -> dict[str, str]:
    """Return the silos to name after a failed update: those with a norm over ten times the median."""
    named: dict[str, str] = {}
    for kind, found in norms.items():
        typical = median_low(found.values())
        for silo, norm in found.items():
            if norm > _SUSPECT * typical:
                named[silo] = f"its {kind} has norm {norm:.3g}, the median is {typical:.3g}"
    return named
