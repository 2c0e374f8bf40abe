"""Ranks of `torch.distributed` against one, and thousands of silos against a hundred.

Every measurement is a torchrun of its own on loopback, one thread per rank. The shapes are those of
Color-MNIST: silos of 8,000 examples and 2,000 for validation, 10,000 in the test set, the paper's network,
with validation and test in every round. What an all-reduce costs is the time that the last rank to arrive
spends in it: all others also wait.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.federations import color_mnist_like, color_mnist_mlp
from benchmarks.processes import memory, torchrun
from benchmarks.timing import Row, at_least, at_most
from fedilc import Federation, Silo, train
from fedilc.config import read_experiment
from fedilc.runtimes.distributed import joined_group

TRAIN, VALIDATION, TEST = 8000, 2000, 10_000
WARM_UP = 1
FEW, MANY = 100, 10_000


@dataclass(frozen=True)
class Measured:
    """One torchrun: seconds of each round, seconds per round in all-reduces, the largest peak of a rank."""

    all_seconds: list[float]
    reducing: float
    peak: float

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.all_seconds)


def rows(quick: bool) -> list[Row]:
    """Speed of two ranks, cost of the all-reduces, and how memory and time grow with silos."""
    found = []
    for silos in (10,) if quick else (10, 5):
        jobs = [{"job": "color", "silos": silos, "rounds": 6 if quick else 12, "ranks": n} for n in (1, 2)]
        one, two = (measured(job) for job in jobs)
        deal = f"{silos - silos // 2} + {silos // 2} silos"
        detail = f"{silos / two.seconds:.1f} / {silos / one.seconds:.1f} silos per second"
        what = f"two ranks, {deal}, silos per second"
        found.append(at_least("ranks", what, "one rank", one.seconds / two.seconds, 1.7, detail))
        detail = f"{1e3 * two.reducing:.1f} ms of {1e3 * two.seconds:.0f} ms"
        share = two.reducing / two.seconds
        found.append(at_most("ranks", f"all-reduces, {deal}", "the round", share, 0.05, detail))
    return found + _growth(quick)


def _growth(quick: bool) -> list[Row]:
    many = 1000 if quick else MANY
    rounds = 3 if quick else 20
    few_found, many_found = (
        measured({"job": "many", "silos": silos, "rounds": rounds, "ranks": 2}) for silos in (FEW, many)
    )
    peaks = f"{many_found.peak / 2**20:.0f} MiB / {few_found.peak / 2**20:.0f} MiB"
    per_silo, few_silo = many_found.seconds / many, few_found.seconds / FEW
    times = f"{1e3 * per_silo:.2f} ms / {1e3 * few_silo:.2f} ms"
    where = f"{many:,} silos, {rounds} rounds"
    memory = many_found.peak / few_found.peak
    return [
        at_most("ranks", f"a rank's peak memory, {where}", f"{FEW} silos", memory, 1.1, peaks),
        at_most("ranks", f"time per silo, {where}", f"{FEW} silos", per_silo / few_silo, 1.1, times),
    ]


def measured(job: dict[str, Any], limit: float | None = None) -> Measured:
    """Do a job on its ranks, and read what each of them left; raise if it takes longer than the limit."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun(job["ranks"], "benchmarks.ranks", json.dumps(job), folder, limit=limit)
        found = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
    last_to_come = [min(calls) for calls in zip(*(rank["reduces"] for rank in found), strict=True)]
    seconds = found[0]["rounds"][WARM_UP:]
    return Measured(seconds, sum(last_to_come) / job["rounds"], max(rank["peak"] for rank in found))


def color_mnist_sized(silos: int) -> Federation:
    """Random silos with validation, and a test set, of Color-MNIST's sizes."""
    *made, apart = color_mnist_like(silos + 1, TRAIN + VALIDATION).silos
    members = [Silo(s.name, s.x[:TRAIN], s.y[:TRAIN], s.x[TRAIN:], s.y[TRAIN:]) for s in made]
    return Federation("color-mnist-sized", members, apart.x[:TEST], apart.y[:TEST])


def _measure(job: dict[str, Any], folder: Path) -> None:
    """What each rank does: train, and leave its times."""
    torch.set_num_threads(1)
    reduces: list[float] = []
    all_reduce = dist.all_reduce

    def timed(*arguments: Any) -> None:
        started = time.perf_counter()
        all_reduce(*arguments)
        reduces.append(time.perf_counter() - started)

    dist.all_reduce = timed
    stamps: list[float] = []
    with joined_group() as group:
        if job["job"] == "color":
            data: Any = color_mnist_sized(job["silos"])
            model, options = color_mnist_mlp(), {"learning_rate": 3e-4, "penalty_weight": 15.0}
        else:
            changes = [f"data.silos={job['silos']}", "silos_per_round=none"]
            settings, home = read_experiment("many-silos", changes)
            data = settings.data.store(0, home)
            model = settings.model.of_shape(data.inputs, data.outputs, 0)
            options = {"learning_rate": settings.learning_rate, "penalty_weight": settings.penalty_weight}
        train(
            data,
            model,
            "fishr-inter-geo",
            rounds=job["rounds"],
            callbacks=[lambda _: stamps.append(time.perf_counter())],
            **options,
        )
        seconds = [after - before for before, after in pairwise(stamps)]
        left = {"rounds": seconds, "reduces": reduces, "peak": memory("VmHWM")}
        (folder / f"{group.rank}.json").write_text(json.dumps(left))


if __name__ == "__main__":
    _measure(json.loads(sys.argv[1]), Path(sys.argv[2]))
