"""`FedILCClassifier` on a small table beside scikit-learn, in processor time on one thread."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut
from sklearn.neural_network import MLPClassifier

from benchmarks.timing import Row, at_least, at_most
from fedilc import FedILCClassifier, FedILCSearchCV

SITES, ROWS, COLUMNS = 6, 150, 10
HIDDEN, BATCH = (32,), 32
ALGORITHMS = ("fedavg", "fedprox", "scaffold", "fedsgd", "fishr-inter-geo")
GOAL = 1.0
SEARCHED = ("fedsgd", "fishr-inter-geo", "fedavg")
GRID = {"learning_rate": [0.003, 0.01, 0.03, 0.1], "weight_decay": [0.0, 0.01]}


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
    found = [
        at_most(
            *("estimators", f"{name}, {what}", against, seconds[name] / sklearn, GOAL),
            f"{1e3 * seconds[name]:.0f} ms / {1e3 * sklearn:.0f} ms",
        )
        for name in ALGORITHMS
    ]
    return found + [_search(name, rounds, x, y, site) for name in SEARCHED]


def _search(
    name: str, rounds: int, x: NDArray[np.float64], y: NDArray[np.int64], site: NDArray[np.int64]
) -> Row:
    """Return how many times as long scikit-learn's search takes, which trains one model after the other."""
    with config_context(enable_metadata_routing=True):
        model = FedILCClassifier(name, hidden=HIDDEN, rounds=rounds).set_fit_request(groups=True)
        seconds = _processor_seconds(
            {
                "ours": lambda: FedILCSearchCV(model, GRID).fit(x, y, groups=site),
                "theirs": lambda: GridSearchCV(model, GRID, cv=LeaveOneGroupOut()).fit(x, y, groups=site),
            },
            repeats=1,
        )
    ours, theirs = seconds["ours"], seconds["theirs"]
    return at_least(
        *("estimators", f"GridSearchCV, {name}, 8 candidates x {SITES} folds, {rounds} rounds"),
        *("FedILCSearchCV", theirs / ours, 5, f"{theirs:.1f} s / {ours:.1f} s"),
    )


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
