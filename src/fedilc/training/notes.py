"""What is said when a run begins: settings and silos that are legal but may not be what was meant."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from fedilc.algorithms import Algorithm
from fedilc.config import Options
from fedilc.errors import FedILCWarning
from fedilc.federation.task import unused_options

TIMES_LARGER = 10


def note_settings(name: str, algorithm: Algorithm, options: Options) -> None:
    """Say which settings leave out something that the algorithm is about, or change nothing in it."""
    if algorithm.intra not in (None, "whole") and options.environment_size is None:
        _say(
            f"{name} works on environments inside a silo, but environment_size is None, "
            "so that each silo is one environment; set environment_size to 1 or to a batch size"
        )
    for key, value in unused_options(algorithm, options).items():
        _say(f"{key}={value} changes nothing in {name}: no part of it takes it")


def note_sizes(algorithm: Algorithm, sizes: Mapping[str, int]) -> None:
    """Say that silos count equally, if one has ten times the training examples of another or more."""
    if len(sizes) < 2 or algorithm.weights != "equal":
        return
    smallest, largest = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    if sizes[largest] < TIMES_LARGER * sizes[smallest]:
        return
    choice = 'set weights = "examples" to count examples instead'
    if algorithm.inter != "mean":
        choice = (
            'an algorithm that takes a mean across silos can count examples instead (weights = "examples"), '
            "and a geometric mean cannot: leave very small silos out, or join them"
        )
    _say(
        f"silo {smallest!r} has {sizes[smallest]} training examples and {largest!r} has {sizes[largest]}, "
        f"and each silo counts equally; {choice}"
    )


def _say(sentence: str) -> None:
    warnings.warn(sentence, FedILCWarning, stacklevel=4)
