"""A silo's side of a study: it trains, scores, and never sends a row, a label or a prediction.

Its owner's limits apply as in a run; a stack outside them is refused before it is built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedilc.data import Silo
from fedilc.data.silo import check_labels
from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.preprocessing import Preprocessing
from fedilc.data.tables.silo_tables import SiloTable, read_silo_table
from fedilc.errors import ConfigError, ProtocolError
from fedilc.evaluation.estimates import NO_FLOORS, Floors
from fedilc.federation.program import STATISTICS
from fedilc.federation.stacked_client import StackedClient
from fedilc.gradients import Loss
from fedilc.runtimes.remote.manifest import read_received, require_silo
from fedilc.runtimes.remote.silo_client import require_safe_hessian
from fedilc.runtimes.remote.stack_declaration import SCORE, DeclaredStack, ModelTask
from fedilc.runtimes.remote.stack_wire import (
    StackTask,
    pack_stack_answer,
    unpack_stack_task,
    whole_request,
)
from fedilc.runtimes.remote.study_manifest import StudyManifest, read_study_manifest
from fedilc.runtimes.remote.survey import SurveyLimits, refuse_identifiers
from fedilc.runtimes.remote.wire import DamagedError, pack, read_header
from fedilc.runtimes.rest.http_client import CoordinatorError, HttpClient, Response, SiloLog
from fedilc.runtimes.rest.participant import HttpMember, SiloLimits
from fedilc.storage.files import require_digest
from fedilc.studies.federated.coordinator import DECLARE
from fedilc.studies.federated.evaluation import CHECK, DESCRIBE, EVALUATE, TOLD, OwnStudy, answer_check
from fedilc.studies.study.fits import Examples, Scored, choosing_losses, predict, together
from fedilc.studies.study.plan import VALIDATION_SHARE
from fedilc.studies.study.site_scores import SiteScores, Told
from fedilc.studies.study.tasks import choosing_rows, validation_rows
from fedilc.training.stack import Lockstep

MOST_DECLARED_BYTES = 64 << 20
_KEPT_STACKS = 4
_TIMES = 4  # of weights: those of a round, what a step sends besides, and those to be scored


def read_silo(name: str, path: Path, manifest: StudyManifest, limits: SurveyLimits) -> SiloTable:
    """Return a silo's table, read as the study says; a column that the owner does not list is missing."""
    settings, rule = manifest.table, read_received(LabelRule, manifest.label, "the study's label")
    table = read_silo_table(path, settings, rule, name)
    limits.require_columns(rule.column, [rule.column, *table.frame.columns])
    if limits.columns is None:
        return table
    frames = table.frame, table.unused
    kept = [one.select(column for column in one.columns if column in limits.columns) for one in frames]
    return replace(table, frame=kept[0], unused=kept[1])


def require_patients(table: SiloTable, share: float, floors: Floors, most: int | None = None) -> None:
    """Raise if losses and gradients of a share of a silo's rows would be those of too few patients."""
    patients = len(table.y) if table.patients is None else len(np.unique(table.patients))
    used = round(share * (patients if most is None else min(patients, most)))
    if used < floors.min_cell:
        raise ConfigError(
            f"silo {table.name!r} would send losses of {used} patients, fewer than "
            f"`min_cell={floors.min_cell}`; it does not take part, unless its owner lowers that"
        )


def require_stack(stack: DeclaredStack, manifest: StudyManifest, table: SiloTable, floors: Floors) -> None:
    """Raise if a stack is none of the study, or asks for losses of other or fewer rows than it may."""
    rows = None, manifest.settings.get("choosing_rows")
    for task in stack.tasks:
        unknown = {*task.training, *task.scored} - set(manifest.silos)
        if unknown or table.name in set(task.training) & set(task.scored):
            raise ProtocolError("a stack of the study names silos that the study does not have")
        if task.rows not in rows or task.validation not in (0.0, VALIDATION_SHARE):
            raise ProtocolError("a stack of the study chooses on other rows than the study says")
        require_patients(table, task.validation or 1.0, floors, task.rows)


Drawn = tuple[Tensor, Tensor, "NDArray[np.intp] | None"]  # inputs, labels, and whose each example is


class SiloStack:
    """A declared stack at one silo: its examples for each model, as a study at one place would have them."""

    def __init__(
        self,
        stack: DeclaredStack,
        manifest: StudyManifest,
        table: SiloTable,
        inputs: Callable[[Preprocessing], Tensor],
    ) -> None:
        self.stack, self.table = stack, table
        self.lockstep = Lockstep(stack.runs(manifest.loss, manifest.outputs))
        self.loss = Loss(manifest.loss)
        self._inputs, self._y = inputs, torch.as_tensor(table.y)
        self._whole: dict[int, Tensor] = {}
        self._parts: dict[tuple[Any, ...], tuple[Silo, Examples | None]] = {}
        self._drawn: dict[tuple[int, int | None], Drawn] = {}
        self._alive: list[int] = []
        self._client: StackedClient | None = None
        self._round = -1

    def task_of(self, row: int) -> ModelTask:
        """Return the task of a row."""
        return self.stack.tasks[self.lockstep.order[row]]

    def _x(self, number: int) -> Tensor:
        """Return the inputs by one preprocessing: one tensor, however many models take it."""
        if number not in self._whole:
            # Models of one preprocessing compute together, and others apart, even if their inputs are equal.
            self._whole[number] = self._inputs(self.stack.made[number]).detach()
        return self._whole[number]

    def _examples(self, task: ModelTask) -> Drawn:
        """Return the silo's examples for a model: all, or as many as settings are chosen on."""
        key = task.inputs, task.rows
        if key not in self._drawn:
            x, y, patients = self._x(task.inputs), self._y, self.table.patients
            if task.rows is not None and len(y) > task.rows:
                drawn = choosing_rows(self.table.y, task.rows, self.loss.name, patients)
                x, y, patients = x[drawn], y[drawn], None if patients is None else patients[drawn]
            self._drawn[key] = x, y, patients
        return self._drawn[key]

    def _part(self, task: ModelTask) -> tuple[Silo, Examples | None]:
        """Return the examples that a model is trained on here, and those held out for validation."""
        key = (task.inputs, task.rows, task.validation, *((task.seed,) if task.validation else ()))
        if key not in self._parts:
            (x, y, patients), held_out = self._examples(task), None
            if task.validation:
                held = validation_rows(y.numpy(), task.validation, self.loss.name, task.seed, patients)
                held_out = (x[held], y[held]) if held.any() else None
                x, y = x[~held], y[~held]
            silo = Silo(self.table.name, x, y)
            check_labels(silo, self.loss.name)
            if self.lockstep.program.algorithm.is_newton:
                require_safe_hessian(silo)
            self._parts[key] = silo, held_out
        return self._parts[key]

    def scored(self, row: int) -> Examples | None:
        """Return the examples that a model is scored on here."""
        task = self.task_of(row)
        if task.validation:
            return self._part(task)[1] if self.table.name in task.training else None
        return self._examples(task)[:2] if self.table.name in task.scored else None

    def _begin(self, number: int) -> None:
        """Begin at a round, and forget what other rounds left: this silo or the coordinator was restarted."""
        name, self._client, self._alive, self._round = self.table.name, None, [], number
        rows = self.lockstep.rows_of.get(name, [])
        if rows:
            self._client = self.lockstep.client(name, [self._part(self.task_of(row))[0] for row in rows])
            self._alive = list(range(len(self.lockstep.members)))

    def answer(self, task: StackTask) -> bytes:
        """Return the answer to a request."""
        program = self.lockstep.program
        first = task.step == STATISTICS or (task.step != SCORE and STATISTICS not in program.steps)
        again = program.keeps_state and task.round == 1 and first
        if task.rows and (again or self._round not in (task.round, task.round - 1)):
            if program.keeps_state and task.round > 1:
                return pack_stack_answer([], [], forgotten=True)
            self._begin(task.round)
        losses = self.losses(task)
        replies = []
        if task.step != SCORE and self._client is not None and task.rows:
            if task.rows != self._alive:
                self._client.use(set(task.rows))
                self._alive = list(task.rows)
            replies = list(self._client.answer(whole_request(task, self.lockstep)))
            self._round = task.round
        return pack_stack_answer(replies, losses, forgotten=False)

    def losses(self, task: StackTask) -> list[float]:
        """Return the losses that settings are chosen by, of the rows that this silo scores."""
        own = [row for row in task.scored if self.table.name in self.task_of(row).scored_silos]
        place = {row: number for number, row in enumerate(task.scored)}
        found: dict[int, float] = {}
        sets: list[Scored] = []
        for row in sorted(own, key=self.lockstep.order.__getitem__):
            examples = self.scored(row)
            if examples is not None:
                sets.append((row, self.table.name, examples))
        for members in [[one] for one in sets] if task.fitted else together(sets):
            rows, inputs = [row for row, _, _ in members], [x for _, _, (x, _) in members]
            assert task.shown is not None
            weights = task.shown[[place[row] for row in rows]]
            if task.fitted:
                outputs = self._predicted(rows[0], weights[0], inputs[0])
            else:
                outputs = self.lockstep.network.predict(weights, inputs)
            losses = choosing_losses(self.loss, outputs, [y for _, _, (_, y) in members])
            found |= dict(zip(rows, losses.tolist(), strict=True))
        return [found.get(row, float("nan")) for row in own]

    def _predicted(self, row: int, weights: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of a complete model, as it will predict."""
        model = self.lockstep.members[row].model
        self.lockstep.network.load(model, weights)
        return predict(model.eval(), dict(model.named_parameters()), x).unsqueeze(0)


@dataclass
class StudyMember(HttpMember[StudyManifest]):
    """One silo in one study, from joining to the end.

    Args:
        http: the connection.
        name: of the silo.
        read: reads the silo's table as the study says.
        log: is told what the silo does.
        limits: the owner's limits.
        columns: the owner's limits on columns.
        floors: how few patients may be told of.
        show: is given what the silo sent of its scores, its place among the others, and the messages that it
            sent: what, how many, and their bytes.
        sent: by kind, how many messages were sent, and their bytes.
        document: what the silo has sent about its scores.
    """

    http: HttpClient
    name: str
    read: Callable[[StudyManifest], SiloTable]
    log: SiloLog
    limits: SiloLimits
    columns: SurveyLimits = field(default_factory=SurveyLimits)
    floors: Floors = NO_FLOORS
    show: Callable[[SiteScores, Told, list[tuple[str, int, int]]], None] | None = None
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    document: SiteScores | None = None
    _evaluated: set[str] = field(default_factory=set)
    _stacks: dict[str, SiloStack] = field(default_factory=dict)
    _x: dict[str, Tensor] = field(default_factory=dict)
    _last: tuple[str, bytes] = ("", b"")
    _manifest_of: StudyManifest = field(init=False)

    def take_part(self) -> str:
        """Work until the study is over; return how it ended."""
        manifest = self.read_manifest()
        require_silo(self.name, manifest.run, manifest.silos)
        self._manifest_of = manifest
        self.limits.require_examples(len(self.table.y), self.name)
        require_patients(self.table, 1.0, self.floors)
        for sentence in self.own.asked():
            self.log(sentence)
        self.limits.remember(manifest, self.http.url, self.name)
        torch.set_num_threads(1)  # matrices of a few thousand numbers, as in a study at one place
        return self._work(manifest)

    @cached_property
    def table(self) -> SiloTable:
        """Return the silo's table."""
        return self.read(self._manifest_of)

    @cached_property
    def own(self) -> OwnStudy:
        """Return the study as this silo has it."""
        return OwnStudy(self._manifest_of, self.table, self.floors)

    def _joining(self) -> dict[str, Any]:
        return {"examples": len(self.table.y)}

    def _joined(self, manifest: StudyManifest, _response: Response) -> None:
        self.log(f"joined the study {manifest.run} over {len(manifest.silos)} silos")

    def _known(self, body: Mapping[str, Any]) -> StudyManifest | None:
        if "manifest" in body:
            raise CoordinatorError("the coordinator has a run now, and not the study that this silo joined")
        return read_study_manifest(body["study"]) if "study" in body else None

    def _max_task_bytes(self, _manifest: StudyManifest) -> int:
        """Return how large a task may be: what the stacks that are declared take, or a declaration."""
        sizes = [
            len(one.lockstep.members)
            * (one.lockstep.network.size * one.lockstep.dtype.itemsize * _TIMES + 400)
            for one in self._stacks.values()
        ]
        return MOST_DECLARED_BYTES + max(sizes, default=0)

    def _do(self, response: Response, manifest: StudyManifest, _digest: str) -> tuple[Response | None, str]:
        """Do a task; a task that comes again, because an answer was lost, has the same answer."""
        body = response.body
        try:
            require_digest(body)
        except ValueError as error:
            raise DamagedError(f"a task was damaged on the way: {error}") from error
        _, about = read_header(body, len(body))
        task, step, number = str(about.get("task")), str(about.get("step")), about.get("round", 1)
        if task != self._last[0]:
            self._last = task, self._answer(body, about, manifest)
        messages, size = self.sent.get(step, (0, 0))
        self.sent[step] = messages + 1, size + len(self._last[1])
        place = f"{number}/{quote(step, safe='')}"
        return self._send(manifest, place, task, "", self._last[1]), ""

    def _answer(self, body: bytes, about: Mapping[str, Any], manifest: StudyManifest) -> bytes:
        """Return the answer to a task."""
        if about.get("step") == DECLARE:
            self._declare(about, manifest)
            return pack({}, {"declared": True})
        if about.get("step") == CHECK:
            return answer_check(about, self._inputs)
        if about.get("step") == EVALUATE:
            if about.get("silo") != self.name:
                raise ProtocolError("the coordinator sent the models of another silo")
            self._evaluated.add(str(about.get("task")))
            # The coordinator has one set of models, and one more after each silo that left.
            if len(self._evaluated) > len(manifest.silos):
                raise ProtocolError(
                    "the coordinator asks for scores of more sets of models than the study has"
                )
            self.document = self.own.answer(body, about, self._inputs)
            return self.document.to_bytes()
        if about.get("step") == DESCRIBE:
            return self.own.described(about)
        if about.get("step") == TOLD:
            told = read_received(Told, about.get("told"), "what the coordinator tells")
            if self.document is not None and self.show is not None:
                self.show(self.document, told, [(kind, *counts) for kind, counts in self.sent.items()])
            return pack({}, {"told": True})
        known = self._stacks.get(str(about.get("stack")))
        if known is None:
            raise ProtocolError("the coordinator asks for a stack that it has not declared")
        task, study, _ = unpack_stack_task(body, known.lockstep)
        if study != manifest.hash:
            raise ProtocolError("the task belongs to another study than the manifest")
        self.log(f"{known.stack.tasks[0].algorithm}, round {task.round}: {len(task.rows)} models", "round")
        return known.answer(task)

    def _declare(self, about: Mapping[str, Any], manifest: StudyManifest) -> None:
        """Keep a stack; refuse one outside the owner's limits."""
        stack = read_received(DeclaredStack, about.get("stack"), "the declaration of a stack")
        numbers = stack.numbers(manifest.outputs)
        if numbers > self.limits.max_parameters:
            raise ConfigError(
                f"a stack of the study has {numbers:,} parameters, but this silo allows "
                f"{self.limits.max_parameters:,}; if this is the right study, raise `max_parameters`"
            )
        require_stack(stack, manifest, self.table, self.floors)
        self._stacks[str(about.get("task"))] = SiloStack(stack, manifest, self.table, self._inputs)
        for name in list(self._stacks)[:-_KEPT_STACKS]:
            del self._stacks[name]

    def _inputs(self, made: Preprocessing) -> Tensor:
        """Return the silo's inputs by a preprocessing; refuse one that singles out patients."""
        key = hashlib.sha256(made.model_dump_json().encode()).hexdigest()
        if key not in self._x:
            table = self.table
            refuse_identifiers(self.name, table.frame, table.labels, made, self.columns)
            self._x[key] = made.transform(table.frame)
        return self._x[key]
