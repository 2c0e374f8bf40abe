"""What stacked training saves in whole studies, as ratios of processor time in one run.

    python -m benchmarks.studies                      # heart disease
    python -m benchmarks.studies heart sites rows     # others by name: see STUDIES
    python -m benchmarks.studies large                # 100,000 rows of 50 columns: minutes
    python -m benchmarks.studies goals                # heart, sites and rows beside their goals
    python -m benchmarks.studies models               # 60 networks 30-32-1 on three silos of 230 rows

Each study is done once, by stacks. Of every set of models that is trained together, a few are trained again
one by one, and their processor time stands for that of the others: "one by one" is the study without stacks,
with the same preprocessing, comparators and scores. "scikit-learn" is MLPClassifier of the same size, batches
and epochs, fitted once for each held-out site and method with federated training. Every study has a process
of its own, whose peak memory is that of the study and of what it is compared with.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import polars as pl
import torch

from fedilc import Federation, Silo
from fedilc.api import train_alone, train_many
from fedilc.models import build_model
from fedilc.studies.study import fits
from fedilc.studies.study.data import StudyData, study_data
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.run import run_study
from fedilc.studies.study.settings import usual_settings
from fedilc.training.stack import StackedRun, Trained, Watch


@dataclass
class Measured:
    """Seconds of processor time: of training by stacks, and of the same models one by one, estimated.

    `samples` is how many models of each stack are trained again.
    """

    samples: int = 2
    models: int = 0
    stacked: float = 0.0
    alone: float = 0.0
    sampling: float = 0.0

    def train(self, runs: Sequence[StackedRun], watch: Watch | None = None) -> list[Trained]:
        """Train by stacks, then some of the runs alone."""
        started = time.process_time()
        found = train_many(runs, watch)
        trained = time.process_time()
        places = np.linspace(0, len(runs) - 1, min(self.samples, len(runs))).astype(int)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for place in places:
                train_alone(runs[place], None)
        sampled = time.process_time() - trained
        self.models += len(runs)
        self.stacked += trained - started
        self.alone += sampled / len(places) * len(runs)
        self.sampling += sampled
        return found


def made_up(folder: Path, sites: int, rows: int, columns: int) -> StudyData:
    """Return a table of several sites whose label follows from some of its columns."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, columns)).round(3)
    site = np.sort(np.arange(rows) % sites)
    risk = x[:, : columns // 2].sum(1) / np.sqrt(columns) + 0.5 * random.normal(size=sites)[site]
    y = random.random(rows) < 1 / (1 + np.exp(-risk))
    frame = pl.DataFrame({f"x{k}": x[:, k] for k in range(columns)})
    names = [f"S{number:02d}" for number in site]
    path = folder / "table.csv"
    frame.with_columns(site=pl.Series(names), y=pl.Series(y.astype(int))).write_csv(path)
    return study_data([str(path)], silo_column="site", label="y")


STUDIES: dict[str, tuple[str, Callable[[Path], StudyData]]] = {
    "heart": ("heart disease, 4 sites, 920 rows", lambda _: study_data(["heart-disease"], prepared=True)),
    "sites": ("20 sites, 928 rows of 12 columns", lambda folder: made_up(folder, 20, 928, 12)),
    "rows": ("15 sites, 11,022 rows of 20 columns", lambda folder: made_up(folder, 15, 11_022, 20)),
    "large": ("4 sites, 100,000 rows of 50 columns", lambda folder: made_up(folder, 4, 100_000, 50)),
}


def perceptrons(data: StudyData, rounds: int) -> float:
    """Return the processor time of scikit-learn's perceptron for each held-out site and method."""
    from sklearn.neural_network import MLPClassifier

    started = time.process_time()
    sites = data.silos[:3]
    for site in sites:
        training = [name for name in data.silos if name != site]
        x = torch.cat([data.inputs(training, name) for name in training]).numpy()
        y = np.concatenate([data.labels[name] for name in training])
        model = MLPClassifier((32,), batch_size=32, max_iter=rounds, n_iter_no_change=rounds, tol=0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(x, y)
    return (time.process_time() - started) / len(sites) * len(data.silos) * 5


@dataclass(frozen=True)
class Line:
    """What was measured of one study: seconds of processor time on one thread, and megabytes.

    Attributes:
        models: how many were trained, without those of comparators.
        stacked: training by stacks.
        alone: the same models one by one, estimated.
        whole: the study.
        network: scikit-learn's perceptrons.
        peak: memory.
    """

    models: int
    stacked: float
    alone: float
    whole: float
    network: float
    peak: float

    @property
    def one_by_one(self) -> float:
        """Return how many times as long the study takes without stacks."""
        return (self.whole - self.stacked + self.alone) / self.whole


def measure(name: str, rounds: int | None, seeds: int | None, samples: int) -> Line:
    """Do one study, in this process, and return what was measured."""
    measured = Measured(samples)
    with tempfile.TemporaryDirectory() as folder:
        data = STUDIES[name][1](Path(folder))
        given = {key: value for key, value in (("rounds", rounds), ("seeds", seeds)) if value is not None}
        plan = StudyPlan(data, usual_settings(data, {}).with_given(given))
        before, fits.train_many = fits.train_many, measured.train
        started = time.process_time()
        try:
            run_study(plan, Path(folder) / "study")
        finally:
            fits.train_many = before
        whole = time.process_time() - started - measured.sampling
    network = perceptrons(data, plan.settings.rounds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Line(measured.models, measured.stacked, measured.alone, whole, network, peak)


def measured_apart(name: str, rounds: int | None, seeds: int | None, samples: int) -> Line:
    """Do one study in a process of its own."""
    options = {"--rounds": rounds, "--seeds": seeds, "--samples": samples}
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    command = [sys.executable, "-m", "benchmarks.studies", name, *given, "--line"]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Line(**json.loads(found.stdout.splitlines()[-1]))


def goals(rounds: int | None, samples: int) -> None:
    """Print the goals of small and middle-sized studies of tables beside what is measured now."""
    print("| what | goal | measured | models | whole study, s | peak MB |\n|---|--:|--:|--:|--:|--:|")
    for name, seeds, goal in (("heart", None, "1/15"), ("sites", None, "1/3"), ("rows", 1, "1/10")):
        line = measured_apart(name, rounds, seeds, samples)
        against = "its models one by one" if name != "sites" else "20 x 5 `MLPClassifier`"
        ratio = f"1/{line.one_by_one:.1f}" if name != "sites" else f"{line.whole / line.network:.2f}"
        what = f"{STUDIES[name][0]}{', 1 seed' if seeds else ''}, against {against}"
        print(
            f"| {what} | {goal} | {ratio} | {line.models} | {line.whole:.1f} | {line.peak:.0f} |", flush=True
        )


def models(rounds: int) -> None:
    """Print the ratio for 60 networks of 30 inputs and one hidden layer of 32, on three silos of 230 rows."""
    random = torch.Generator().manual_seed(0)
    silos = []
    for name in "abc":
        x = torch.randn(230, 30, generator=random)
        silos.append(Silo(name, x, x[:, 0] + torch.randn(230, generator=random) > 0))
    federation = Federation("models", silos)
    print("| algorithm | ms per round, stacked | one by one / stacked |\n|---|--:|--:|")
    for algorithm in ("fedsgd", "fishr-inter-geo", "fishr-intra-geo", "fedavg"):
        size = {"environment_size": 32} if algorithm == "fishr-intra-geo" else {}
        runs = [
            StackedRun(
                federation,
                build_model("mlp", (30,), 1, seed, hidden=[32]),
                algorithm,
                {"rounds": rounds, "learning_rate": (0.01, 0.03, 0.1)[seed % 3], **size},
            )
            for seed in range(60)
        ]
        train_many(runs[:2])
        measured = Measured()
        measured.train(runs)
        ratio = measured.alone / measured.stacked
        print(f"| `{algorithm}` | {1000 * measured.stacked / rounds:.0f} | {ratio:.1f} |")


def main() -> None:
    """Measure the studies and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies", description=__doc__)
    parser.add_argument("studies", nargs="*", default=["heart"], choices=[*STUDIES, "goals", "models"])
    parser.add_argument("--rounds", type=int, help="the most rounds; by default those of a study")
    parser.add_argument("--seeds", type=int)
    parser.add_argument(
        "--samples", type=int, default=2, help="models of a stack that are trained alone, too"
    )
    parser.add_argument("--line", action="store_true", help="print what is measured of one study as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    given = (arguments.rounds, arguments.seeds, arguments.samples)
    if arguments.line:
        print(json.dumps(asdict(measure(arguments.studies[0], *given))))
        return
    if "models" in arguments.studies:
        models(arguments.rounds or 10)
        return
    print("Seconds of processor time on one thread, and ratios in this run.\n")
    if "goals" in arguments.studies:
        goals(arguments.rounds, arguments.samples)
        return
    print(
        "| study | models | training by stacks | one by one / stacks | whole study | one by one / whole | "
        "whole / scikit-learn | peak MB |\n|---|--:|--:|--:|--:|--:|--:|--:|"
    )
    for name in arguments.studies:
        line = measured_apart(name, *given)
        print(
            f"| {STUDIES[name][0]} | {line.models} | {line.stacked:.1f} | {line.alone / line.stacked:.1f} | "
            f"{line.whole:.1f} | {line.one_by_one:.1f} | {line.whole / line.network:.2f} | {line.peak:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
