"""Interleaved measurement, and the rows that the table prints."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """One comparison: how many times the cost of the reference, and what we aim for."""

    group: str
    what: str
    against: str
    ratio: float
    goal: str
    met: bool
    detail: str = ""

    def plain(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def medians(actions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each action, taken in turns so that a busy moment hits all alike."""
    for action in actions.values():
        action()
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def at_most(group: str, what: str, against: str, ratio: float, limit: float, detail: str = "") -> Row:
    """A cost that must not exceed `limit` times the reference."""
    return Row(group, what, against, ratio, f"<= {limit:g}", ratio <= limit, detail)


def at_least(group: str, what: str, against: str, ratio: float, limit: float, detail: str = "") -> Row:
    """A speed-up that must reach `limit` times."""
    return Row(group, what, against, ratio, f">= {limit:g}", ratio >= limit, detail)
