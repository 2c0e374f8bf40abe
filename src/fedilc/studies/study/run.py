"""Do a whole study: the runs that choose settings, then the final ones without each held-out silo in turn.

`plan.py` says which runs these are, `tasks.py` what one run is, how it is trained and where it is stored;
`studies/worker_pool.py` does several at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedilc.errors import FedILCError
from fedilc.evaluation.estimates import NO_FLOORS, Floors
from fedilc.studies.study.choice import Choice, choose
from fedilc.studies.study.comparators import ALONE, NULL, alone_regression, null_outputs
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import Agreement, StudyResult, mean_agreement
from fedilc.studies.study.tasks import (
    AloneTask,
    Result,
    RunTask,
    Task,
    TaskJob,
    name_of,
    read_result,
    stacks_of,
)
from fedilc.studies.worker_pool import Show, Work, working


class StudyError(FedILCError):
    """A method could not be trained with any of its settings."""


def run_study(
    plan: StudyPlan,
    folder: Path,
    jobs: int = 1,
    show: Show = lambda _: None,
    floors: Floors = NO_FLOORS,
    beside: StudyResult | None = None,
) -> StudyResult:
    """Do the runs of a study that are not in its folder yet; measure the methods at the held-out silos.

    `jobs` runs are done at a time; `show` is called with the state of the work; `floors` is how few patients
    may be told of; `beside` is another study of the same examples to compare with.
    """
    alone: dict[str, dict[str, Sequence[AloneTask]]] = {
        silo: {ALONE: plan.alone(silo), alone_regression(plan.data.loss): plan.alone_regression(silo)}
        for silo in plan.held_out
    }
    own = [task for methods in alone.values() for tasks in methods.values() for task in tasks]
    # Tables are matrices of a few thousand numbers, for which threads cost more than they give.
    threads = 1 if plan.data.is_table else None
    with working(jobs, "runs", show, shared=plan.data, threads=threads) as work:
        runs = Runs(plan, folder, work)
        choices = runs.chosen(own)
        runs.do("sites alone", own)
        final = runs.final(choices)
    outputs = {
        silo: {method: runs.outputs(tasks) for method, tasks in methods.items()}
        for silo, methods in final.items()
    }
    for silo, methods in alone.items():
        for method, folds in methods.items():
            found = runs.outputs_alone(silo, folds)
            if found is not None:
                outputs[silo][method] = found
    if plan.settings.references:
        for silo in outputs:
            outputs[silo][NULL] = [_null(plan, silo)] * plan.settings.seeds
    return StudyResult.of(plan, choices, outputs, runs.agreements(final), floors, beside)


def _null(plan: StudyPlan, silo: str) -> NDArray[Any]:
    """Return what the training silos' labels alone predict for a held-out silo."""
    data = plan.data
    labels = [y for name, y in data.labels.items() if name != silo]
    return null_outputs(data.loss, data.outputs, labels, len(data.labels[silo]))


Final = Mapping[str, Mapping[str, Sequence[RunTask]]]  # by held-out silo and method, a run per seed


class Runs:
    """The runs of a study: done if their files are not there, and read back from them."""

    def __init__(self, plan: StudyPlan, folder: Path, work: Work) -> None:
        self.plan, self.folder, self.work = plan, folder, work
        self._files: dict[str, Path] = {}

    def chosen(self, own: Sequence[Task] = ()) -> dict[str, dict[str, Choice]]:
        """Return, by held-out silo and method, the settings chosen on the other silos.

        `own` are further runs, which are counted among those to be done.
        """
        plan = self.plan
        groups = sorted({plan.group_of(silo) for silo in plan.held_out})
        self.expect([*self.first(groups), *own])
        chosen = self.choices(groups)
        return {
            silo: {
                method: choice
                for method in plan.methods
                if (choice := chosen[plan.group_of(silo)][method]) is not None
            }
            for silo in plan.held_out
        }

    def final(self, choices: Mapping[str, Mapping[str, Choice]]) -> Final:
        """Do the runs on all silos but each held-out one; return them by silo and method."""
        final = {
            silo: {method: self.plan.final(method, silo, choice) for method, choice in methods.items()}
            for silo, methods in choices.items()
        }
        last = [task for methods in final.values() for tasks in methods.values() for task in tasks]
        self.do("training for held-out silos", last)
        return final

    def agreements(self, final: Final) -> dict[str, Agreement]:
        """Return how far silos' signs agreed, by federated method."""
        return {
            method: self.agreement([task for methods in final.values() for task in methods.get(method, [])])
            for method in self.plan.algorithms
        }

    def expect(self, tasks: Sequence[Task]) -> None:
        """Count the runs to be done: these, and one per held-out silo, method and seed, not yet known."""
        self.work.later.update({self._name(task): task.algorithm for task in tasks}.values())
        sites, seeds = len(self.plan.held_out), self.plan.settings.seeds
        self.work.later.update(
            {name: sites * (1 if self.plan.without_chance(name) else seeds) for name in self.plan.methods}
        )

    def do(self, label: str, tasks: Sequence[Task]) -> None:
        """Do the tasks that are not done; which are done together depends on these tasks alone."""
        new = {name: task for task in tasks if (name := self._name(task)) not in self._files}
        jobs = [
            TaskJob.of(self.folder, stack, self.plan.data)
            for stack in stacks_of(new.values(), self.plan.data)
        ]
        for job in jobs:
            self._files |= dict(zip(map(self._name, job.tasks), job.paths, strict=True))
        self.work.do(label, jobs)

    def _name(self, task: Task) -> str:
        return name_of(task.identity(self.plan.data))

    def _file(self, task: Task) -> Path:
        return self._files[self._name(task)]

    def first(self, groups: Sequence[int]) -> list[RunTask]:
        """Return runs as many as choosing settings takes; which ones they are is known step by step."""
        plan, found = self.plan, list[RunTask]()
        for group in groups:
            base: dict[str, Any] = {}
            for methods in plan.steps:
                grids = {method: plan.grid(method, base) for method in methods}
                found += [
                    task
                    for method in methods
                    for tasks in plan.choosing(method, group, base)
                    for task in tasks
                ]
                likely = {method: Choice(grid[0], 1, 0.0, {}) for method, grid in grids.items()}
                base |= plan.base(likely)
        return found

    def choices(self, groups: Sequence[int]) -> dict[int, dict[str, Choice | None]]:
        """Return, by group and method, the settings chosen; each step begins with what the last one chose."""
        plan = self.plan
        chosen: dict[int, dict[str, Choice | None]] = {group: {} for group in groups}
        for methods in plan.steps:
            bases = {group: plan.base(chosen[group]) for group in groups}
            runs = {
                (method, group): list(plan.choosing(method, group, bases[group]))
                for group in groups
                for method in methods
            }
            self.do("choosing settings", [task for of in runs.values() for tasks in of for task in tasks])
            for (method, group), entries in runs.items():
                chosen[group][method] = self.choice(method, group, entries, bases[group])
        return chosen

    def choice(
        self, method: str, group: int, entries: Sequence[Sequence[RunTask]], base: Mapping[str, Any]
    ) -> Choice | None:
        """Return the settings that the runs of a grid make a method choose for a group.

        None if a comparator has no model; raise if a method that was asked for has none.
        """
        scored = [[read_result(self._file(task))[1] for task in tasks] for tasks in entries]
        found = choose(self.plan, method, group, scored, base)
        if found is None and method in self.plan.settings.algorithms:
            change = "raise `weight_decays`" if self.plan.without_chance(method) else "lower `learning_rates`"
            raise StudyError(f"{method} diverged with every setting that it may choose from; {change}")
        return found

    def outputs(self, tasks: Sequence[RunTask]) -> list[NDArray[Any]]:
        """Return the outputs for a held-out silo, per seed."""
        return [tensors["outputs"].double().numpy() for tensors in self.trained(tasks)]

    def trained(self, tasks: Sequence[RunTask]) -> list[dict[str, Tensor]]:
        """Return the weights of final models, and their outputs if the held-out rows are here."""
        found = []
        for task in tasks:
            tensors, about = read_result(self._file(task))
            if about["failed"]:
                raise StudyError(
                    f"{task.algorithm} diverged without {task.predicted!r} although it did not when its "
                    f"settings were chosen ({about['failed']}); lower `learning_rates`"
                )
            found.append(tensors)
        return found

    def agreement(self, tasks: Sequence[RunTask]) -> Agreement:
        """Return how far silos' signs agreed in these runs; of runs that measured it."""
        found = (read_result(self._file(task))[1].get("agreement", {}) for task in tasks)
        return mean_agreement(
            (int(number), layers) for by_round in found for number, layers in by_round.items()
        )

    def outputs_alone(self, silo: str, tasks: Sequence[AloneTask]) -> list[NDArray[Any]] | None:
        """Return the cross-validated outputs of a site's own model, per seed; None if it has none."""
        return outputs_of_folds(self.plan, silo, tasks, [read_result(self._file(task)) for task in tasks])


def outputs_of_folds(
    plan: StudyPlan, silo: str, tasks: Sequence[AloneTask], results: Sequence[Result]
) -> list[NDArray[Any]] | None:
    """Return the cross-validated outputs of a site's own model, per seed; None if it has none."""
    if not tasks or any(about["failed"] for _, about in results):
        return None
    shape = (len(plan.data.labels[silo]), plan.data.outputs)
    found = {seed: np.full(shape, np.nan) for seed in tasks[0].seeds}
    for tensors, _ in results:
        for seed, outputs in found.items():
            outputs[tensors["rows"].numpy()] = tensors[f"outputs.{seed}"].double().numpy()
    # A regression has the same outputs for every seed.
    return [found.get(seed, found[0]) for seed in range(plan.settings.seeds)]
