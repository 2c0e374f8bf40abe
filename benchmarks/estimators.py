"""`FedILCClassifier` on a small table beside scikit-learn, in processor time on one thread."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from benchmarks.timing import Row, at_most
from fedilc import FedILCClassifier

SITES, ROWS, COLUMNS = 6, 150, 10
HIDDEN, BATCH = (32,), 32
ALGORITHMS = ("fedavg", "fedprox", "scaffold", "fedsgd", "fishr-inter-geo")
GOAL = 1.0


def rows(quick: bool) -> list[Row]:
    """Return each algorithm's time against a multilayer perceptron of the same size, batches and epochs."""
    rounds = 20 if quick else 60
    random = np.random.default_rng(0)
    x = random.normal(size=(SITES * ROWS, COLUMNS))
    y = (x @ random.normal(size=COLUMNS) + random.normal(size=len(x)) > 0).astype(int)
    site = np.repeat(np.arange(SITES), ROWS)
    fits: dict[str, Callable[[], object]] = {"scikit-learn": partial(_scikit_learn, x, y, rounds)}
    for name in ALGORITHMS:
        model = FedILCClassifier(name, hidden=HIDDEN, rounds=rounds)
        fits[name] = partial(model.fit, x, y, groups=site)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = _processor_seconds(fits, repeats=3 if quick else 7)
    finally:
        torch.set_num_threads(threads)
    against, sklearn = f"MLPClassifier, {rounds} epochs of batches of {BATCH}", seconds["scikit-learn"]
    what = f"{SITES} x {ROWS} rows, {rounds} rounds"
    return [
        at_most(
            *("estimators", f"{name}, {what}", against, seconds[name] / sklearn, GOAL),
            f"{1e3 * seconds[name]:.0f} ms / {1e3 * sklearn:.0f} ms",
        )
        for name in ALGORITHMS
    ]


def _scikit_learn(x: NDArray[np.float64], y: NDArray[np.int64], rounds: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        MLPClassifier(
            HIDDEN, solver="sgd", batch_size=BATCH, max_iter=rounds, n_iter_no_change=rounds, random_state=0
        ).fit(x, y)


def _processor_seconds(actions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the least processor time of each action, in turns: a busy machine only adds to it."""
    found = dict.fromkeys(actions, float("inf"))
    for _ in range(repeats):
        for name, action in actions.items():
            started = time.process_time()
            action()
            found[name] = min(found[name], time.process_time() - started)
    return found
