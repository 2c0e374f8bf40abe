"""The paper's benchmarks as campaigns: their runs, and the histories and scores of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedilc.algorithms import PAPER, find_algorithm
from fedilc.config import Experiment, read_experiment
from fedilc.errors import ConfigError, nearest
from fedilc.evaluation.inconsistency import (
    CURVATURES,
    Curvature,
    Scores,
    ScoresByCurvature,
    curvatures,
    inconsistency,
)
from fedilc.paper.campaign import Campaign
from fedilc.storage.run_folder import RunFolder
from fedilc.studies.jobs import RunJob

SEEDS = 5
# The size of the authors' test batches, over which they average areas under curves.
BENCHMARKS = {"color-mnist": 32, "rotated-cifar10": 64, "eicu": 256, "eicu-demo": 256, "eicu-synthetic": 256}
SMALL = {"color-digits": 32}
SYNTHETIC = ("eicu-synthetic",)


@dataclass(frozen=True)
class Plan:
    """A benchmark, the algorithms and seeds to run, and the changes to the paper's settings."""

    benchmark: str
    algorithms: tuple[str, ...]
    seeds: int
    changes: tuple[str, ...]
    out: Path

    @classmethod
    def of(
        cls, benchmark: str, names: Sequence[str], seeds: int, changes: Sequence[str], out: Path | None
    ) -> Plan:
        """Return a plan; raise if a name is unknown. Without names it has all algorithms of the paper."""
        known = BENCHMARKS | SMALL
        if benchmark not in known:
            raise ConfigError(f"benchmark {benchmark!r} is unknown{nearest(benchmark, known)}")
        found = tuple(find_algorithm(name)[0] for name in names) or PAPER
        areas = f"thresholded_batch={known[benchmark]}"
        return cls(benchmark, found, seeds, (areas, *changes), out or Path("results") / benchmark)

    def job(self, algorithm: str, seed: int) -> RunJob:
        """Return the run of one algorithm and seed."""
        changes = (f"algorithm={algorithm}", f"seed={seed}", *self.changes)
        return RunJob.of(self.benchmark, changes, self.out / "runs" / algorithm / f"seed-{seed}")

    def jobs(self) -> list[RunJob]:
        """Return all runs, seed after seed, so that an unfinished campaign compares complete seeds."""
        return [self.job(algorithm, seed) for seed in range(self.seeds) for algorithm in self.algorithms]

    @property
    def note(self) -> str:
        """Return the size of the campaign in words, and its differences from the paper's."""
        ours = self.job(self.algorithms[0], 0).settings
        theirs, _ = read_experiment(self.benchmark)
        seeds, whole = f"{self.seeds} seed{'s' * (self.seeds != 1)}", self.benchmark in BENCHMARKS
        parts = [seeds if self.seeds == SEEDS or not whole else f"{seeds} of the paper's {SEEDS}"]
        parts += size_in_words(ours, theirs.rounds)
        in_words = ("fishr_reduction=", "rounds=", "data.subset=", "evaluate_every=", "thresholded_batch=")
        parts += [change for change in self.changes if not change.startswith(in_words)]
        return ", ".join(parts)

    def campaign(self) -> Campaign:
        """Return the histories of the runs that have begun."""
        histories = {
            algorithm: {
                seed: history
                for seed in range(self.seeds)
                if (history := RunFolder(self.job(algorithm, seed).folder).history())
            }
            for algorithm in self.algorithms
        }
        return Campaign(
            self.benchmark,
            {name: by_seed for name, by_seed in histories.items() if by_seed},
            note=self.note,
            synthetic=self.benchmark in SYNTHETIC,
            fishr_reduction=self.job(self.algorithms[0], 0).settings.fishr_reduction,
        )


def size_in_words(settings: Experiment, usual_rounds: int) -> list[str]:
    """Return the rounds of a run, and the share of the examples and of the rounds that it uses."""
    rounds = f"{settings.rounds} rounds"
    parts = [rounds if settings.rounds == usual_rounds else f"{rounds} of {usual_rounds}"]
    if (subset := getattr(settings.data, "subset", 1.0)) < 1:
        parts.append(f"{100 * subset:g} % of the training and validation examples")
    if settings.evaluate_every > 1:
        parts.append(f"evaluated every {settings.evaluate_every} rounds")
    return parts


def score(plan: Plan) -> ScoresByCurvature:
    """Return the inconsistency scores of finished runs at their last weights, by curvature and algorithm."""
    found: dict[Curvature, dict[str, dict[int, dict[tuple[str, str], float]]]]
    found = {curvature: {name: {} for name in plan.algorithms} for curvature in CURVATURES}
    for seed in range(plan.seeds):
        federation = None
        for name in plan.algorithms:
            job = plan.job(name, seed)
            folder = RunFolder(job.folder)
            if not folder.checkpoint_file.exists() or not job.finished():
                continue
            if federation is None:
                federation = job.settings.data.build(seed, job.home)
            model = job.settings.model.build(federation, seed)
            model.load_state_dict(folder.load().weights, strict=False)
            for curvature in CURVATURES:
                diagonals = curvatures(federation, model, job.settings.classifier, curvature)
                found[curvature][name][seed] = inconsistency(diagonals)
    scores = {
        curvature: {name: Scores(by_seed) for name, by_seed in by_algorithm.items() if by_seed}
        for curvature, by_algorithm in found.items()
    }
    return {curvature: by_algorithm for curvature, by_algorithm in scores.items() if by_algorithm}
