"""Small silos of random measurements, and the notes on a federation of them."""

from __future__ import annotations

import numpy as np

from fedilc import Federation, Silo
from fedilc.data.checks.federation import check_federation

QUICK = {"rounds": 1, "learning_rate": 0.1, "algorithm": "fedsgd"}


def examples(seed: int, number: int = 40, width: int = 3) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(number, width)).astype(np.float32)
    return x, np.arange(number) % 2


def silo(name: str, seed: int, number: int = 40) -> Silo:
    return Silo(name, *examples(seed, number), *examples(seed + 100, 20))


def notes_of(federation: Federation) -> list[str]:
    report = check_federation(federation)
    assert not report.problems
    return report.notes
