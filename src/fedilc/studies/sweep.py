"""One algorithm over several weights of its penalty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedilc.algorithms import find_algorithm
from fedilc.config import read_experiment
from fedilc.errors import ConfigError
from fedilc.studies.jobs import Job
from fedilc.studies.reproduce import SYNTHETIC

if TYPE_CHECKING:
    from fedilc.config import Experiment


# By criterion and lambda, the record that the criterion chooses of each seed's run.
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
        """A sweep whose algorithm has a penalty to weigh."""
        name = find_algorithm(algorithm)[0]
        settings, _ = read_experiment(experiment, [f"algorithm={name}", *changes])
        if settings.parts().penalty is None:
            raise ConfigError(f"{name} has no penalty, so lambda changes nothing; choose one with a penalty")
        folder = out or Path("results") / f"{Path(experiment).stem}-lambda"
        return cls(experiment, name, tuple(values), seeds, tuple(changes), folder)

    def job(self, value: float, seed: int) -> Job:
        """The run of one value and seed."""
        own = (f"algorithm={self.algorithm}", f"penalty_weight={value!r}", f"seed={seed}")
        folder = self.out / "runs" / f"lambda-{value:g}" / f"seed-{seed}"
        return Job.of(self.experiment, (*own, *self.changes), folder)

    def jobs(self) -> list[Job]:
        """All runs, seed after seed."""
        return [self.job(value, seed) for seed in range(self.seeds) for value in self.values]

    @property
    def settings(self) -> Experiment:
        """The settings of a run, but for its lambda and seed."""
        return self.job(self.values[0], 0).settings

    @property
    def title(self) -> str:
        """The experiment and the algorithm, with a warning if the data are not real."""
        made_up = " (SYNTHETIC DATA)" if self.settings.data.source in SYNTHETIC else ""
        return f"{self.settings.name}{made_up} · {self.algorithm}"

    @property
    def note(self) -> str:
        """The size of the sweep and the units of lambda."""
        settings = self.settings
        parts = [f"{self.seeds} seed{'s' * (self.seeds != 1)}", f"{settings.rounds} rounds"]
        if (subset := getattr(settings.data, "subset", 1.0)) < 1:
            parts.append(f"{100 * subset:g} % of the training and validation examples")
        if settings.evaluate_every > 1:
            parts.append(f"evaluated every {settings.evaluate_every} rounds")
        return f'{", ".join(parts)}; fishr_reduction="{settings.fishr_reduction}"'

    def swept(self) -> Swept:
        """Return the records that each criterion chooses, by value and seed.

        A criterion that cannot choose a round of every run, for want of examples, is left out.
        """
        from fedilc.evaluation.selection import CRITERIA, selections
        from fedilc.federation import RunFolder

        chosen = {
            value: [selections(RunFolder(self.job(value, s).folder).history()) for s in range(self.seeds)]
            for value in self.values
        }
        return {
            criterion: {value: [run[criterion] for run in runs] for value, runs in chosen.items()}
            for criterion in CRITERIA
            if all(criterion in run for runs in chosen.values() for run in runs)
        }
