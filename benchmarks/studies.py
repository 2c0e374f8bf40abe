"""What stacked training saves in whole studies, as ratios of processor time in one run.

    python -m benchmarks.studies                      # heart disease
    python -m benchmarks.studies heart sites rows     # others by name: see STUDIES
    python -m benchmarks.studies large                # 100,000 rows of 50 columns: minutes
    python -m benchmarks.studies models               # 60 networks 30-32-1 on three silos of 230 rows

Each study is done once, by stacks. Of every set of models that is trained together, a few are trained again
one by one, and their processor time stands for that of the others: "one by one" is the study without stacks,
with the same preprocessing, comparators and scores. "scikit-learn" is MLPClassifier of the same size, batches
and epochs, fitted once for each held-out site and method with federated training.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from fedilc.studies.study.plan import StudyPlan, usual_settings
from fedilc.studies.study.run import run_study
from fedilc.training.stack import StackedRun, Trained, Watch

SAMPLES = 2  # models of a stack that are trained again alone


@dataclass
class Measured:
    """Seconds of processor time: of training by stacks, and of the same models one by one, estimated."""

    models: int = 0
    stacked: float = 0.0
    alone: float = 0.0
    sampling: float = 0.0

    def train(self, runs: Sequence[StackedRun], watch: Watch | None = None) -> list[Trained]:
        """Train by stacks, then some of the runs alone."""
        started = time.process_time()
        found = train_many(runs, watch)
        trained = time.process_time()
        places = np.linspace(0, len(runs) - 1, min(SAMPLES, len(runs))).astype(int)
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


def measure(name: str, rounds: int | None, seeds: int | None, folder: Path) -> str:
    """Do one study, and return its line of the table."""
    what, read = STUDIES[name]
    data = read(folder)
    given = {key: value for key, value in (("rounds", rounds), ("seeds", seeds)) if value is not None}
    plan = StudyPlan(data, usual_settings(data, {}).with_given(given))
    measured = Measured()
    before, fits.train_many = fits.train_many, measured.train
    started, wall = time.process_time(), time.perf_counter()
    try:
        run_study(plan, folder / "study")
    finally:
        fits.train_many = before
    whole = time.process_time() - started - measured.sampling
    wall = time.perf_counter() - wall
    alone = whole - measured.stacked + measured.alone
    network = perceptrons(data, plan.settings.rounds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"| {what} | {measured.models} | {measured.stacked:.1f} | {measured.alone / measured.stacked:.1f} | "
        f"{whole:.1f} | {alone / whole:.1f} | {whole / network:.2f} | {peak:.0f} |"
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
    parser.add_argument("studies", nargs="*", default=["heart"], choices=[*STUDIES, "models"])
    parser.add_argument("--rounds", type=int, help="the most rounds; by default those of a study")
    parser.add_argument("--seeds", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if "models" in arguments.studies:
        models(arguments.rounds or 10)
        return
    print("Seconds of processor time on one thread, and ratios in this run.\n")
    print(
        "| study | models | training by stacks | one by one / stacks | whole study | one by one / whole | "
        "whole / scikit-learn | peak MB |\n|---|--:|--:|--:|--:|--:|--:|--:|"
    )
    for name in arguments.studies:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(name, arguments.rounds, arguments.seeds, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
