"""Find outliers: replies whose norm is far above the usual, which a round sets aside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

RECENT_ROUNDS = 10
MIN_SILOS = 2
STRIKES = 3
_SUSPECT = 10.0
_DIGITS = 6

Norms = Mapping[str, float]


@dataclass
class NormBound:
    """A bound on norms: `factor` times the usual norm; 0 is no bound.

    A reply is an outlier if its norm is above `factor` times the median of the round's norms, and above
    `factor` times the median of the last ten rounds' medians. Of an even number of norms, the median is the
    lower of the middle two, so that one of two silos cannot raise it. A single silo is compared with its
    last rounds only, and in the first round with nothing. Groups that nearly cancel (the terms of a penalty)
    may be E times as long as usual, so their bound is E times higher.

    A silo whose replies were set aside in three rounds is left out of the rest of the run.
    """

    factor: float = 100.0
    recent: dict[str, list[float]] = field(default_factory=dict)
    set_aside: dict[str, list[str]] = field(default_factory=dict)

    def outliers(self, kind: str, norms: Norms, cancels: bool = False) -> dict[str, str]:
        """Return the silos whose norm of this kind of tensors is above the bound, and why."""
        before = self.recent.get(kind)
        usual = [median_low(before)] if before else []
        if len(norms) >= MIN_SILOS:
            usual.append(median_low(norms.values()))
        typical = max(usual, default=0.0)
        bound = math.inf
        if self.factor and 0.0 < typical < math.inf:
            bound = self.factor * typical * (len(norms) if cancels else 1)
        return {
            silo: f"its {kind} has the norm {norm:.3g}, and {typical:.3g} is usual"
            for silo, norm in norms.items()
            if norm > bound or norm == math.inf
        }

    def remember(self, norms: Mapping[str, Norms]) -> dict[str, float]:
        """Return the medians of a round's norms by kind, and store them to compare later rounds with."""
        medians = {kind: float(f"{median_low(found.values()):.{_DIGITS}g}") for kind, found in norms.items()}
        self._add(medians)
        return medians

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

    def restore(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Restore medians and counts from a history."""
        for record in history:
            self._add(record.get("norms", {}))
            for silo, reason in record.get("set_aside", {}).items():
                self.set_aside.setdefault(silo, []).append(reason)

    def _add(self, medians: Mapping[str, float]) -> None:
        for kind, value in medians.items():
            self.recent[kind] = [*self.recent.get(kind, []), value][-RECENT_ROUNDS:]


def suspects(norms: Mapping[str, Norms]) -> dict[str, str]:
    """Return the silos to name after a failed update: those with a norm above ten times the median."""
    named: dict[str, str] = {}
    for kind, found in norms.items():
        typical = median_low(found.values())
        for silo, norm in found.items():
            if norm > _SUSPECT * typical:
                named[silo] = f"its {kind} has the norm {norm:.3g}, and the median is {typical:.3g}"
    return named
