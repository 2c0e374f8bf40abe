"""A tree of coordinators against one coordinator: 16 silos below two sub-coordinators, and the same 16 flat.

Real coordinators, each a process on loopback, and silos that compute nothing, so that a round is travel and
adding up. Both sides are measured in turns, so that other work on the machine hits them alike. On one
machine the sub-coordinators share the processors with the root, which they would not in the field.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import MIB, finish, memory, started, url_of
from benchmarks.rest import last_status
from benchmarks.timing import Row, at_most
from benchmarks.travel import seconds_per_round, write_experiment

SUBS, SILOS_EACH = 2, 8
SETTINGS = {"learning_rate": 3e-4, "penalty_weight": 15.0}
ALGORITHMS = ("fishr-inter-geo", "fedsgd")


@dataclass(frozen=True)
class Measured:
    """Of one run: seconds per round, and at the root bytes per round and the most memory over idle."""

    seconds: float
    up: float
    down: float
    memory: float


def rows(quick: bool) -> list[Row]:
    """Time, bytes and memory of each algorithm; quickly, of the one that sends the most."""
    rounds, turns = (6, 1) if quick else (15, 3)
    found: list[Row] = []
    for name in ALGORITHMS[:1] if quick else ALGORITHMS:
        taken = [(_measure(name, rounds, SUBS), _measure(name, rounds, 0)) for _ in range(turns)]
        tree, flat = (_medians([pair[side] for pair in taken]) for side in (0, 1))
        found += [
            _row(name, "seconds per round", tree.seconds, flat.seconds, 1.5, 1, "s"),
            _row(name, "bytes up to the root", tree.up, flat.up, 0.7, 1e6, "MB"),
            _row(name, "bytes down from the root", tree.down, flat.down, 0.2, 1e6, "MB"),
            _row(name, "the root's memory over idle", tree.memory, flat.memory, 2, MIB, "MiB"),
        ]
    return found


def _row(name: str, what: str, tree: float, flat: float, goal: float, unit: float, word: str) -> Row:
    detail = f"{tree / unit:.3g} / {flat / unit:.3g} {word}"
    whole = f"{name}, {SUBS} x {SILOS_EACH} silos, {what}"
    return at_most("tree", whole, f"{SUBS * SILOS_EACH} silos flat", tree / flat, goal, detail)


def _medians(runs: list[Measured]) -> Measured:
    columns = zip(*((run.seconds, run.up, run.down, run.memory) for run in runs), strict=True)
    return Measured(*map(statistics.median, columns))


def _measure(name: str, rounds: int, subs: int) -> Measured:
    """Run with so many sub-coordinators; with none, all silos join the root."""
    names = [f"silo-{number}" for number in range(SUBS * SILOS_EACH)]
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        settings = {**SETTINGS, "algorithm": name, "rounds": rounds, "evaluate_every": rounds}
        write_experiment(folder / "tree.toml", names, settings)
        listens = ["--insecure", "--port", "0"]
        command = ["serve", folder / "tree.toml", *listens, "--out", folder / "run"]
        root = stack.enter_context(started("fedilc", *command))
        url = url_of(root)
        idle = memory(pid=root.pid)
        for part in range(SUBS):
            where = url
            if subs:
                above = ["--upstream", url, "--silo", f"sub-{part}", "--out", folder / f"sub-{part}"]
                where = url_of(stack.enter_context(started("fedilc", "serve", *above, *listens)))
            stack.enter_context(started("benchmarks.attacks", "silos", where, 0, *names[part::SUBS]))
        last = last_status(url)
        most = memory("VmHWM", root.pid)
        seconds = seconds_per_round(folder / "run")
        finish(root)
    told = [*last["silos"], *last["carriers"]]
    up, down = (sum(one[way] for one in told) / rounds for way in ("bytes_received", "bytes_sent"))
    return Measured(seconds, up, down, most - idle)
