"""A sweep: one algorithm with several weights (lambda) of its penalty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedilc.algorithms import find_algorithm
from fedilc.config import Experiment, read_experiment
from fedilc.errors import ConfigError
from fedilc.evaluation.selection import CRITERIA, selections
from fedilc.federation import RunFolder
from fedilc.studies.jobs import RunJob
from fedilc.studies.reproduce import SYNTHETIC, size_in_words

# By criterion and lambda: the record that the criterion chooses from the run of each seed.
Swept = dict[str, dict[float, list[Mapping[str, Any]]]]


@dataclass(frozen=True)
class Sweep:
    """An experiment, an algorithm with a penalty, the values of lambda, and seeds."""

    experiment: str
    algorithm: str
    values: tuple[float, ...]
    seeds: int
    changes: tuple[str, ...]
    out: Path

    @classmethod
    def of(
        cls,
        experiment: str,
        algorithm: str,
        values: Sequence[float],
        seeds: int,
        changes: Sequence[str],
        out: Path | None,
    ) -> Sweep:
        """Return a sweep; raise if its algorithm has no penalty."""
        name = find_algorithm(algorithm)[0]
        settings, _ = read_experiment(experiment, [f"algorithm={name}", *changes])
        if settings.parts.penalty is None:
            raise ConfigError(f"{name} has no penalty, so lambda changes nothing; choose one with a penalty")
        folder = out or Path("results") / f"{Path(experiment).stem}-lambda"
        return cls(experiment, name, tuple(values), seeds, tuple(changes), folder)

    def job(self, value: float, seed: int) -> RunJob:
        """Return the run of one value and seed."""
        own = (f"algorithm={self.algorithm}", f"penalty_weight={value!r}", f"seed={seed}")
        folder = self.out / "runs" / f"lambda-{value:g}" / f"seed-{seed}"
        return RunJob.of(self.experiment, (*own, *self.changes), folder)

    def jobs(self) -> list[RunJob]:
        """Return all runs, seed after seed."""
        return [self.job(value, seed) for seed in range(self.seeds) for value in self.values]

    @property
    def settings(self) -> Experiment:
        """Return the settings that all runs share: those of the first run."""
        return self.job(self.values[0], 0).settings

    @property
    def title(self) -> str:
        """Return the experiment and the algorithm, with a warning if the data are synthetic."""
        synthetic = " (SYNTHETIC DATA)" if self.settings.data.source in SYNTHETIC else ""
        return f"{self.settings.name}{synthetic} · {self.algorithm}"

    @property
    def note(self) -> str:
        """Return the size of the sweep in words, and the units of lambda."""
        settings = self.settings
        size = [f"{self.seeds} seed{'s' * (self.seeds != 1)}", *size_in_words(settings, settings.rounds)]
        return f'{", ".join(size)}; fishr_reduction="{settings.fishr_reduction}"'

    def swept(self) -> Swept:
        """Return the records that each criterion chooses, by value and seed.

        A criterion that cannot choose a round of every run, for want of examples, is left out.
        """
        chosen = {
            value: [selections(RunFolder(self.job(value, s).folder).history()) for s in range(self.seeds)]
            for value in self.values
        }
        return {
            criterion: {value: [run[criterion] for run in runs] for value, runs in chosen.items()}
            for criterion in CRITERIA
            if all(criterion in run for runs in chosen.values() for run in runs)
        }
