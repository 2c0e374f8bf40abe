"""Train the models of a study over silos elsewhere: stack after stack, one request for all its models.

A stack is declared to each silo once (`stack_declaration.py`). The weights that a round's request carries
are those after the round before; if losses to choose by are due after that round, the same request asks for
them, so that choosing costs no request of its own, except at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedilc.federation.stacked_client import StackedReply, StackedRequest
from fedilc.runtimes.remote.stack_declaration import (
    SCORE,
    DeclaredStack,
    ModelTask,
    declared,
    due,
    run_of,
)
from fedilc.runtimes.remote.stack_wire import (
    StackAnswer,
    StackTask,
    answer_schemas,
    max_answer_bytes,
    pack_stack_task,
    unpack_stack_answer,
)
from fedilc.runtimes.remote.study_manifest import StudyManifest
from fedilc.runtimes.rest.study_queue import Notice, StudyQueue, StudyTask
from fedilc.studies.federated.data import RemoteTables
from fedilc.studies.study.tasks import Result, RunTask
from fedilc.training.stack import Lockstep, Moment, StackTraining, Trained, stacks

DECLARE = "declare"


class Declaration(Notice):
    """The declaration of a stack, which a silo confirms."""

    step, confirms = DECLARE, "declared"

    def __init__(self, stack: DeclaredStack, silos: Sequence[str]) -> None:
        super().__init__(stack.name, silos, {"stack": stack.model_dump(mode="json")})


class _ForgottenError(Exception):
    """A silo has lost what it must remember from round to round."""


@dataclass(frozen=True, eq=False)
class OpenStack:
    """A stack that is trained: its models, and which of them each silo trains and scores."""

    stack: DeclaredStack
    lockstep: Lockstep
    declaration: Declaration

    @classmethod
    def of(cls, stack: DeclaredStack, manifest: StudyManifest) -> OpenStack:
        """Return a declared stack as the coordinator trains it."""
        lockstep = Lockstep(stack.runs(manifest.loss, manifest.outputs))
        return cls(stack, lockstep, Declaration(stack, manifest.silos))

    def task_of(self, row: int) -> ModelTask:
        """Return the task of a row."""
        return self.stack.tasks[self.lockstep.order[row]]

    def trained_by(self, silo: str, rows: Sequence[int]) -> list[int]:
        """Return those of the rows that a silo trains."""
        return [row for row in rows if silo in self.task_of(row).training]

    def scored_by(self, silo: str, rows: Sequence[int]) -> list[int]:
        """Return those of the rows that a silo scores."""
        return [row for row in rows if silo in self.task_of(row).scored_silos]


class StackStep(StudyTask[StackAnswer]):
    """One step of a stack, as the silos that have a part in it receive it."""

    def __init__(self, opened: OpenStack, task: StackTask, manifest: StudyManifest) -> None:
        self._opened, self._task, self._study = opened, task, manifest.hash
        self.name, self.step, self.round = task.name(manifest.hash), task.step, task.round
        self.declaration = opened.declaration
        own = {
            silo: (opened.trained_by(silo, task.rows), opened.scored_by(silo, task.scored))
            for silo in manifest.silos
        }
        self.own = {silo: rows for silo, rows in own.items() if any(rows)}
        self.silos = tuple(self.own)
        self._body: bytes | None = None

    def pack(self, _silo: str) -> bytes:
        """Return the request, which is the same for all silos."""
        if self._body is None:
            self._body = pack_stack_task(self._task, self._study)
        return self._body

    def max_bytes(self, silo: str) -> int:
        """Return how large the answer may be, from the rows that the silo trains and scores."""
        trained, scored = self.own[silo]
        return max_answer_bytes(answer_schemas(self._task, self._opened.lockstep, len(trained), len(scored)))

    def read(self, body: bytes, silo: str) -> StackAnswer:
        """Return a silo's answer."""
        trained, scored = self.own[silo]
        schemas = answer_schemas(self._task, self._opened.lockstep, len(trained), len(scored))
        return unpack_stack_answer(body, silo, trained, schemas)


Curve = dict[str, dict[str, float]]


@dataclass
class _StackRun:
    """The training of one stack over the queue."""

    queue: StudyQueue
    opened: OpenStack
    progress: Callable[[int], None]
    rows: list[int] = field(init=False)
    pending: list[int] = field(default_factory=list)
    at: int = 0
    shown: Tensor = field(init=False)
    curves: dict[int, Curve] = field(default_factory=dict)

    def run(self) -> list[Trained]:
        """Train the models of the stack, and record the losses to choose by; return them in order."""
        self.training = StackTraining(self.opened.lockstep)
        self.rows = list(range(len(self.opened.lockstep.members)))
        trained = self.training.train(self._ask, self._use, self._watch)
        if self.pending:
            self._score(self.at, self.pending, self.shown, fitted=False)
        if self.opened.lockstep.program.algorithm.is_newton:
            self._score_minima()
        return trained

    def _use(self, alive: set[int]) -> None:
        self.rows = sorted(alive)

    def _watch(self, moment: Moment) -> None:
        """Remember whose losses are due after a round; the next request asks for them."""
        order, newton = self.training.order, self.opened.lockstep.program.algorithm.is_newton
        rows = sorted(order.index(place) for place in moment.places)
        self.pending = [row for row in rows if due(self.opened.task_of(row), moment.round, newton)]
        self.at, self.shown = moment.round, self.training.server.shown
        self.progress(len(moment.places))

    def _ask(self, request: StackedRequest) -> Iterator[StackedReply]:
        scored, self.pending = self.pending, []
        shown = self.shown if scored else request.weights
        task = StackTask.of(self.opened.stack.name, request, self.rows, scored, shown)
        answers = self._answers(task)
        self._record(self.at, scored, answers)
        for silo in self.opened.lockstep.rows_of:
            if silo in answers:
                yield from answers[silo].replies

    def _answers(self, task: StackTask) -> dict[str, StackAnswer]:
        answers = self.queue.ask(StackStep(self.opened, task, self.queue.manifest))
        if any(answer.forgotten for answer in answers.values()):
            raise _ForgottenError
        return answers

    def _record(self, number: int, scored: Sequence[int], answers: Mapping[str, StackAnswer]) -> None:
        """Keep the losses of some rows after a round, in the order in which a local study has them."""
        found: dict[int, dict[str, float]] = {row: {} for row in scored}
        for silo, answer in answers.items():
            own = self.opened.scored_by(silo, scored)
            for row, loss in zip(own, answer.losses, strict=True):
                found[row][silo] = loss
        for row, losses in found.items():
            order = self.opened.task_of(row).scored_silos
            curve = {silo: losses[silo] for silo in order if silo in losses}
            self.curves.setdefault(row, {})[str(number)] = curve

    def _score(self, number: int, rows: list[int], shown: Tensor, *, fitted: bool) -> None:
        weights = shown[rows]
        task = StackTask(
            self.opened.stack.name,
            SCORE,
            number,
            [],
            torch.empty(0, weights.shape[1], dtype=weights.dtype),
            scored=rows,
            shown=weights,
            fitted=fitted,
        )
        self._record(number, rows, self._answers(task))

    def _score_minima(self) -> None:
        """Score regressions, whose weights on the way to the minimum are not scored."""
        results, by_rounds = self.training.results, dict[int, list[int]]()
        for row in sorted(results):
            if self.opened.task_of(row).scored_silos:
                by_rounds.setdefault(self.opened.task_of(row).rounds, []).append(row)
        for number, rows in by_rounds.items():
            shown = torch.zeros_like(self.training.server.weights)
            shown[rows] = torch.stack([results[row] for row in rows])
            self._score(number, rows, shown, fitted=True)


@dataclass
class StackTrainer:
    """Do the tasks of a study over silos elsewhere; it takes the place of `perform_all`."""

    queue: StudyQueue
    data: RemoteTables

    def __call__(self, tasks: Sequence[RunTask], progress: Callable[[float], None]) -> list[Result]:
        """Return the results of tasks that are done together, in order."""
        total, done = sum(int(task.options["rounds"]) for task in tasks), 0

        def step(models: int) -> None:
            nonlocal done
            done += models
            progress(done / total)

        models, made = self._models(tasks)
        loss, outputs = self.data.loss, self.data.outputs
        runs = [run_of(model, len(made[model.inputs]["columns"]), loss, outputs) for model in models]
        results: dict[int, Result] = {}
        for places in stacks(runs):
            used = list(dict.fromkeys(models[place].inputs for place in places))
            own = [
                models[place].model_copy(update={"inputs": used.index(models[place].inputs)})
                for place in places
            ]
            stack = declared(own, [made[number]["preprocessing"] for number in used])
            opened = OpenStack.of(stack, self.queue.manifest)
            trained, curves = self._train(opened, step)
            for number, place in enumerate(places):
                row = opened.lockstep.order.index(number)
                results[place] = _result(tasks[place], trained[number], curves.get(row, {}))
        return [results[place] for place in range(len(tasks))]

    def _train(
        self, opened: OpenStack, step: Callable[[int], None]
    ) -> tuple[list[Trained], dict[int, Curve]]:
        """Train a stack; begin again if a silo has lost what it must remember."""
        while True:
            run = _StackRun(self.queue, opened, step)
            try:
                return run.run(), run.curves
            except _ForgottenError:
                opened = OpenStack.of(opened.stack, self.queue.manifest)

    def _models(self, tasks: Sequence[RunTask]) -> tuple[list[ModelTask], list[dict[str, Any]]]:
        """Return the tasks as they are declared, and the preprocessing of each set of training silos."""
        made: dict[tuple[str, ...], dict[str, Any]] = {}
        models = []
        for task in tasks:
            key = (task.scaling, *task.training)
            if key not in made:
                fitted = self.data.fit(task.training, task.scaling)
                made[key] = {"preprocessing": fitted.model_dump(mode="json"), "columns": fitted.columns}
            models.append(
                ModelTask(
                    algorithm=task.algorithm,
                    options=dict(task.options),
                    training=task.training,
                    hidden=task.hidden,
                    seed=task.seed,
                    scored=task.scored,
                    validation=task.validation,
                    rows=task.rows,
                    inputs=list(made).index(key),
                )
            )
        return models, list(made.values())


def _result(task: RunTask, trained: Trained, curve: Curve) -> Result:
    """Return a trained model as the result of its task."""
    about: dict[str, Any] = {"curve": curve, "failed": trained.failed}
    if trained.failed:
        return {}, about | ({"agreement": {}} if task.predicted is not None else {})
    tensors = {
        f"weights.{name}": tensor.detach().clone() for name, tensor in trained.model.named_parameters()
    }
    if task.predicted is not None:
        signs = {str(record["round"]): record.get("sign_agreement") for record in trained.history}
        about["agreement"] = {number: one for number, one in signs.items() if one and len(task.training) > 1}
    return tensors, about
