"""Answers that stand out by their norm, and what a bound on it sets aside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

RECENT_ROUNDS = 10
LEAST_SILOS = 2
STRIKES = 3
_SUSPECT = 10.0
_DIGITS = 6

Norms = Mapping[str, float]


@dataclass
class NormBound:
    """How many times longer than usual an answer may be; 0 is no bound.

    An answer is an outlier if its norm is over `factor` times the median of the round's and over `factor`
    times the median of the last rounds' medians. The median is the lower one of two, so that one of two silos
    cannot move it upwards; a silo that is alone is compared with its last rounds, and in the first round with
    nothing. Answers that cancel (the terms of a penalty) add up to little, so that one of E may well be E
    times as long as the others: their bound is E times as far.

    A silo whose answers were set aside in three rounds is left out from then on.
    """

    factor: float = 100.0
    recent: dict[str, list[float]] = field(default_factory=dict)
    set_aside: dict[str, list[str]] = field(default_factory=dict)

    def outliers(self, kind: str, norms: Norms, cancels: bool = False) -> dict[str, str]:
        """Return why each silo whose answer of this kind is not to be used stands out."""
        before = self.recent.get(kind)
        usual = [median_low(before)] if before else []
        if len(norms) >= LEAST_SILOS:
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
        """Return the medians of a round's norms by kind, and compare later rounds with them."""
        medians = {kind: float(f"{median_low(found.values()):.{_DIGITS}g}") for kind, found in norms.items()}
        self._add(medians)
        return medians

    def strike(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Count that a round sets answers aside; return the reasons, and which silos are left out now."""
        found: dict[str, str] = {}
        for silo, reason in reasons.items():
            before = self.set_aside.setdefault(silo, [])
            last = f"; left out from now on, after {STRIKES} such rounds"
            found[silo] = reason + last if len(before) + 1 == STRIKES else reason
            before.append(found[silo])
        return found

    @property
    def left_out(self) -> dict[str, str]:
        """Return the silos that are no longer asked, and why."""
        return {silo: found[-1] for silo, found in self.set_aside.items() if len(found) >= STRIKES}

    def restore(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Compare with the rounds of a history, as if they had just been done."""
        for record in history:
            self._add(record.get("norms", {}))
            for silo, reason in record.get("set_aside", {}).items():
                self.set_aside.setdefault(silo, []).append(reason)

    def _add(self, medians: Mapping[str, float]) -> None:
        for kind, value in medians.items():
            self.recent[kind] = [*self.recent.get(kind, []), value][-RECENT_ROUNDS:]


def suspects(norms: Mapping[str, Norms]) -> dict[str, str]:
    """Return the silos to name after a step that went wrong: those ten times longer than the median."""
    named: dict[str, str] = {}
    for kind, found in norms.items():
        typical = median_low(found.values())
        for silo, norm in found.items():
            if norm > _SUSPECT * typical:
                named[silo] = f"its {kind} has the norm {norm:.3g}, and the median is {typical:.3g}"
    return named


def sentence(reasons: Mapping[str, str]) -> str:
    """Return silos and reasons in words.

    >>> sentence({"north": "its gradient is long", "south": "its gradient is longer"})
    "silo 'north' (its gradient is long) and silo 'south' (its gradient is longer)"
    """
    return " and ".join(f"silo {silo!r} ({reason})" for silo, reason in reasons.items())
