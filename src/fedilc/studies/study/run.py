"""A study: leave one silo out in turn, train several methods on the others, and measure them at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedilc.errors import FedILCError
from fedilc.evaluation.calibration import Floats
from fedilc.evaluation.comparison import Comparison, compare_methods, mean_over_sites
from fedilc.evaluation.intervals import Interval, interval_of, resampled
from fedilc.evaluation.scores import HIGHER_IS_BETTER, SCORES
from fedilc.federation.tensor_files import read_tensors
from fedilc.seeds import seed_for
from fedilc.studies.study.plan import Choice, StudyPlan, choose
from fedilc.studies.study.tasks import ALONE, AloneTask, RunTask, Task, is_done, task_file
from fedilc.studies.study.workers import Perform, workers

# By site and method, one array of outputs per seed.
Outputs = dict[str, dict[str, list[NDArray[Any]]]]
Scores = dict[str, dict[str, dict[str, Floats]]]
BySeed = dict[str, dict[str, dict[str, list[float]]]]
Agreement = dict[str, dict[int, dict[str, float]]]
Show = Callable[["Progress"], None]


class StudyError(FedILCError):
    """A method could not be trained with any of its settings."""


@dataclass
class Progress:
    """How far a study is: runs done, runs left by method, and the seconds that each took."""

    total: int
    jobs: int
    label: str = ""
    done: int = 0
    left: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def seconds_left(self) -> float | None:
        """Return about how long the rest takes; None before a run is done."""
        if not self.seconds:
            return None
        means = {method: float(np.mean(times)) for method, times in self.seconds.items()}
        other = float(np.mean(list(means.values())))
        return sum(count * means.get(method, other) for method, count in self.left.items()) / self.jobs


@dataclass(frozen=True)
class StudyResult:
    """What a study found.

    Attributes:
        plan: what was trained.
        choices: by held-out silo and method, the settings chosen on the other silos.
        outputs: by held-out silo and method, the outputs for its examples, per seed.
        scores: by held-out silo, method and score, the mean over seeds and that of each resample.
        by_seed: by held-out silo, method and score, the value of each seed.
        agreement: by method, round and layer, how far the training silos' signs agree: the mean over the runs
            that got to that round.
    """

    plan: StudyPlan
    choices: dict[str, dict[str, Choice]]
    outputs: Outputs
    scores: Scores
    by_seed: BySeed
    agreement: Agreement

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the names of the scores; the first one decides."""
        return SCORES[self.plan.data.loss]

    def sites_with(self, metric: str) -> list[str]:
        """Return the held-out silos at which every algorithm has this score."""
        names = self.plan.settings.algorithms
        return [
            site
            for site, methods in self.scores.items()
            if all(np.isfinite(methods[name][metric][0]) for name in names)
        ]

    def interval(self, site: str, method: str, metric: str) -> Interval:
        """Return a method's score at a held-out silo with its interval over examples."""
        found = self.scores[site].get(method)
        return Interval(None, None, None) if found is None else interval_of(found[metric])

    def sites_of(self, method: str, metric: str) -> list[str]:
        """Return those of `sites_with` at which this method has the score; a small site has no own model."""
        found = [site for site in self.sites_with(metric) if method in self.scores[site]]
        return [site for site in found if np.isfinite(self.scores[site][method][metric][0])]

    def mean(self, method: str, metric: str) -> Interval:
        """Return a method's mean over the sites at which it has this score."""
        sites = self.sites_of(method, metric)
        if not sites:
            return Interval(None, None, None)
        return interval_of(mean_over_sites({site: self.scores[site][method][metric] for site in sites}))

    def comparisons(self, metric: str) -> dict[str, Comparison]:
        """Return every algorithm compared with the reference; empty if no site has this score."""
        sites = self.sites_with(metric)
        if not sites:
            return {}
        methods = {
            name: {site: self.scores[site][name][metric] for site in sites}
            for name in self.plan.settings.algorithms
        }
        return compare_methods(methods, self.plan.reference, higher_is_better=metric in HIGHER_IS_BETTER)

    def best(self, metric: str) -> str:
        """Return the algorithm with the best mean over sites; the reference if several are equal."""
        names = sorted(self.plan.settings.algorithms, key=lambda name: name != self.plan.reference)
        sign = -1 if metric in HIGHER_IS_BETTER else 1
        values = {name: self.mean(name, metric).value for name in names}
        return min(names, key=lambda name: np.inf if (v := values[name]) is None else sign * v)


def run_study(plan: StudyPlan, folder: Path, jobs: int, show: Show) -> StudyResult:
    """Do the runs of a study that are not in its folder yet; measure the methods at the held-out silos."""
    groups = sorted({plan.group_of(silo) for silo in plan.held_out})
    keys = [(method, group) for group in groups for method in plan.methods]
    choosing = {key: list(plan.choosing(*key)) for key in keys}
    alone = {silo: plan.alone(silo) if plan.settings.references else [] for silo in plan.held_out}
    with workers(plan.data, jobs) as perform:
        runs = _Runs(plan, folder, perform, show, jobs)
        first = [task for entries in choosing.values() for tasks in entries for task in tasks]
        runs.expect(first, [task for tasks in alone.values() for task in tasks])
        runs.do("choosing settings", first)
        runs.do("sites alone", [task for tasks in alone.values() for task in tasks])
        chosen = {key: runs.choice(*key, entries) for key, entries in choosing.items()}
        choices = {
            silo: {method: chosen[method, plan.group_of(silo)] for method in plan.methods}
            for silo in plan.held_out
        }
        final = {
            silo: {method: plan.final(method, silo, choice) for method, choice in methods.items()}
            for silo, methods in choices.items()
        }
        runs.do(
            "training for held-out silos",
            [task for methods in final.values() for tasks in methods.values() for task in tasks],
        )
        runs.do("scores and intervals", [])
    outputs = {
        silo: {method: runs.outputs(tasks) for method, tasks in methods.items()}
        for silo, methods in final.items()
    }
    for silo, tasks in alone.items():
        own = runs.outputs_alone(silo, tasks)
        if own is not None:
            outputs[silo][ALONE] = own
    agreement = {
        method: runs.agreement([task for methods in final.values() for task in methods[method]])
        for method in plan.settings.algorithms
    }
    return StudyResult(plan, choices, outputs, *_scores(plan, outputs), agreement)


class _Runs:
    """The runs of a study: done if their files are not there, and read back from them."""

    def __init__(self, plan: StudyPlan, folder: Path, perform: Perform, show: Show, jobs: int) -> None:
        self.plan, self.folder, self.perform, self.show = plan, folder, perform, show
        self.progress = Progress(0, jobs)

    def expect(self, *parts: Sequence[Task]) -> None:
        """Count the runs to be done; those of the last part are known by number only."""
        settings, sites = self.plan.settings, len(self.plan.held_out)
        for tasks in parts:
            files = {self._file(task): task for task in tasks}
            self.progress.total += len(files)
            self.progress.left.update(task.algorithm for task in files.values())
        for method in self.plan.methods:
            self.progress.left[method] += sites * settings.seeds
            self.progress.total += sites * settings.seeds

    def do(self, label: str, tasks: Sequence[Task]) -> None:
        """Do the tasks that are not done."""
        self.progress.label = label
        left = {}
        for path, task in {self._file(task): task for task in tasks}.items():
            if is_done(path):
                self._count(task)
            else:
                left[path] = task
        self.show(self.progress)
        self.perform(left, self._done)

    def _count(self, task: Task) -> None:
        self.progress.done += 1
        self.progress.left[task.algorithm] -= 1

    def _done(self, task: Task, seconds: float) -> None:
        self._count(task)
        self.progress.seconds.setdefault(task.algorithm, []).append(seconds)
        self.show(self.progress)

    def _file(self, task: Task) -> Path:
        return task_file(self.folder, task, self.plan.data)

    def choice(self, method: str, group: int, entries: Sequence[Sequence[RunTask]]) -> Choice:
        """Return the settings that the runs of a grid make a method choose for a group."""
        scored = [[read_tensors(self._file(task))[1] for task in tasks] for tasks in entries]
        found = choose(self.plan, method, group, scored)
        if found is None:
            raise StudyError(
                f"{method} diverged with every setting that it may choose from; lower --learning-rates"
            )
        return found

    def outputs(self, tasks: Sequence[RunTask]) -> list[NDArray[Any]]:
        """Return the outputs for a held-out silo, per seed."""
        found = []
        for task in tasks:
            tensors, about = read_tensors(self._file(task))
            if about["failed"]:
                raise StudyError(
                    f"{task.algorithm} diverged without {task.predicted!r} although it did not when its "
                    f"settings were chosen ({about['failed']}); lower --learning-rates"
                )
            found.append(tensors["outputs"].double().numpy())
        return found

    def agreement(self, tasks: Sequence[RunTask]) -> dict[int, dict[str, float]]:
        """Return how far silos' signs agreed in these runs, by round and layer; of runs that know it."""
        found: dict[int, dict[str, list[float]]] = {}
        for task in tasks:
            for number, layers in read_tensors(self._file(task))[1].get("agreement", {}).items():
                for layer, value in layers.items():
                    found.setdefault(int(number), {}).setdefault(layer, []).append(value)
        return {
            number: {layer: float(np.mean(values)) for layer, values in found[number].items()}
            for number in sorted(found)
        }

    def outputs_alone(self, silo: str, tasks: Sequence[AloneTask]) -> list[NDArray[Any]] | None:
        """Return the cross-validated outputs of a site's own model, per seed; None if it has none."""
        seeds = range(self.plan.settings.seeds)
        shape = (len(self.plan.data.labels(silo)), self.plan.data.outputs)
        found = [np.full(shape, np.nan) for _ in seeds]
        for task in tasks:
            tensors, about = read_tensors(self._file(task))
            if about["failed"]:
                return None
            for seed in seeds:
                found[seed][tensors["rows"].numpy()] = tensors[f"outputs.{seed}"].double().numpy()
        return found if tasks else None


def _scores(plan: StudyPlan, outputs: Outputs) -> tuple[Scores, BySeed]:
    """Return all scores at every held-out silo: of the mean over seeds with resamples, and by seed.

    All methods and seeds share a silo's resamples, so that their differences are paired.
    """
    scores: Scores = {}
    by_seed: BySeed = {}
    for site, methods in outputs.items():
        y, loss = plan.data.labels(site), plan.data.loss
        seed = seed_for(0, "study", site)
        scores[site], by_seed[site] = {}, {}
        for method, per_seed in methods.items():
            found = [
                resampled(loss, y, one, seed=seed, resamples=plan.settings.resamples) for one in per_seed
            ]
            names = list(found[0])
            scores[site][method] = {name: np.mean([one[name] for one in found], axis=0) for name in names}
            by_seed[site][method] = {name: [float(one[name][0]) for one in found] for name in names}
    return scores, by_seed
