"""What a coordinator asks of each silo besides training: whether Newton's method is safe, and its scores.

The models of a held-out silo travel to it, and it answers with one document of scores (`SiteScores`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from torch import Tensor

from fedilc.algorithms import find_algorithm
from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.preprocessing import Preprocessing
from fedilc.data.tables.silo_tables import SiloTable, SiloTables
from fedilc.data.tables.table_settings import Scaling
from fedilc.errors import DataError, ProtocolError, printable
from fedilc.evaluation.estimates import Floors
from fedilc.runtimes.remote.manifest import Name, read_received
from fedilc.runtimes.remote.silo_client import unsafe_hessian
from fedilc.runtimes.remote.stack_declaration import Widths
from fedilc.runtimes.remote.study_manifest import StudyManifest
from fedilc.runtimes.remote.wire import TensorSchema, pack, read_header, unpack
from fedilc.runtimes.rest.study_queue import SMALL_BYTES, Notice, StudyTask
from fedilc.section import Section
from fedilc.storage.files import json_digest
from fedilc.studies.study.comparators import ALONE, NULL, alone_regression
from fedilc.studies.study.data import StudyTables
from fedilc.studies.study.description import describe_site
from fedilc.studies.study.fits import build_network, predict
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.run import outputs_of_folds
from fedilc.studies.study.scoring import asked_by, check_document, rows_of, score_site
from fedilc.studies.study.settings import StudySettings
from fedilc.studies.study.site_scores import SiteDescription, SiteScores, Told
from fedilc.studies.study.tasks import AloneTask, Result, perform_all, stacks_of

CHECK, EVALUATE, DESCRIBE, TOLD = "check", "evaluate", "describe", "told"
MODELS = "models"
_ANSWER_BYTES = 64 << 20
_MOST_ASKED = 1000


class CheckAsked(Section):
    """Preprocessings by which a silo would be asked for second derivatives."""

    preprocessing: Annotated[tuple[dict[str, Any], ...], Field(max_length=20_000)]


class FinalModel(Section):
    """One model for a held-out silo: its method, network, and place among the preprocessings."""

    method: Name
    algorithm: Name
    hidden: Widths | Annotated[str, Field(max_length=100)] | None
    inputs: Annotated[int, Field(ge=0, lt=20_000)]
    parameters: dict[Name, Annotated[list[int], Field(max_length=8)]] = Field(max_length=1000)


class EvaluationAsked(Section):
    """What a held-out silo is asked to score, besides the weights.

    `everyone` is the preprocessing of all silos, whose columns are described; `null` is what a model without
    features predicts; `drawn` are the methods whose curves are given too.
    """

    models: Annotated[tuple[FinalModel, ...], Field(max_length=20_000)]
    preprocessing: Annotated[tuple[dict[str, Any], ...], Field(max_length=1000)]
    everyone: dict[str, Any]
    null: list[float] | None
    drawn: Annotated[tuple[Name, ...], Field(max_length=2)]


class SafetyCheck(StudyTask["str | None"]):
    """The question whether a silo takes part in Newton's method."""

    round, step = 1, CHECK

    def __init__(self, preprocessing: Sequence[Preprocessing], silos: Sequence[str]) -> None:
        asked = CheckAsked(preprocessing=tuple(made.model_dump(mode="json") for made in preprocessing))
        self.silos = tuple(silos)
        self.name = json_digest({CHECK: asked.model_dump(mode="json")})[:32]
        about = {"step": CHECK, "task": self.name, "asked": asked.model_dump(mode="json")}
        self._body = pack({}, about, digest=True)

    def pack(self, _silo: str) -> bytes:
        """Return the question."""
        return self._body

    def max_bytes(self, _silo: str) -> int:
        """Return how large an answer may be."""
        return SMALL_BYTES

    def read(self, body: bytes, _silo: str) -> str | None:
        """Return why the silo does not take part; None if it does."""
        _, about = read_header(body, SMALL_BYTES)
        reason = about.get("refused", "")
        if reason is not None and not (isinstance(reason, str) and 0 < len(reason) < 500):
            raise ProtocolError("its answer to the check is not valid")
        return reason


class Evaluation(StudyTask[SiteScores]):
    """The models of one held-out silo, which it scores."""

    round, step = 1, EVALUATE

    def __init__(
        self, silo: str, asked: EvaluationAsked, weights: Sequence[Mapping[str, Tensor]], plan: StudyPlan
    ) -> None:
        self.silos, self._asked = (silo,), asked_by(plan)
        own = (ALONE, alone_regression(plan.data.loss), NULL) if plan.settings.references else ()
        self._allowed = {*(one.method for one in asked.models), *own}
        groups = {f"{MODELS}.{number}": dict(one) for number, one in enumerate(weights)}
        content = {"asked": asked.model_dump(mode="json"), "silo": silo}
        digest = hashlib.sha256(json_digest(content).encode())
        for number, one in enumerate(weights):
            for name, tensor in one.items():
                digest.update(f"{number} {name}".encode() + tensor.contiguous().numpy().tobytes())
        self.name = digest.hexdigest()[:32]
        self._body = pack(groups, {"step": EVALUATE, "task": self.name, **content}, digest=True)

    def pack(self, _silo: str) -> bytes:
        """Return the models."""
        return self._body

    def max_bytes(self, _silo: str) -> int:
        """Return how large the document may be."""
        return _ANSWER_BYTES

    def read(self, body: bytes, silo: str) -> SiteScores:
        """Return the silo's document."""
        try:
            found = SiteScores.read(body)
            check_document(found, silo, self._asked, self._allowed)
        except DataError as error:
            raise ProtocolError(str(error)) from error
        return found


class Describing(StudyTask[SiteDescription]):
    """The question who is at silos that are not held out; `fitted` is the preprocessing of all silos."""

    round, step = 1, DESCRIBE

    def __init__(self, silos: Sequence[str], fitted: Preprocessing) -> None:
        self.silos = tuple(silos)
        content = {"everyone": fitted.model_dump(mode="json")}
        self.name = json_digest({DESCRIBE: content})[:32]
        self._body = pack({}, {"step": DESCRIBE, "task": self.name, **content}, digest=True)

    def pack(self, _silo: str) -> bytes:
        """Return the question."""
        return self._body

    def max_bytes(self, _silo: str) -> int:
        """Return how large a description may be."""
        return _ANSWER_BYTES

    def read(self, body: bytes, silo: str) -> SiteDescription:
        """Return a silo's description."""
        try:
            found = SiteDescription.model_validate_json(body)
        except ValidationError as error:
            raise ProtocolError(f"its description cannot be read: {error.errors()[0]['msg']}") from error
        if found.silo != silo:
            raise ProtocolError("its description is that of another silo")
        return found


class Telling(Notice):
    """What a held-out silo is told at the end, for its own page: its place among the others."""

    step, confirms = TOLD, "told"

    def __init__(self, silo: str, told: Told) -> None:
        content = {"told": told.model_dump(mode="json"), "silo": silo}
        super().__init__(json_digest(content)[:32], (silo,), content)


def answer_check(about: Mapping[str, Any], inputs: Callable[[Preprocessing], Tensor]) -> bytes:
    """Return a silo's answer to a check."""
    asked = read_received(CheckAsked, about.get("asked"), "the coordinator's check")
    reasons = (unsafe_hessian(inputs(_made(one))) for one in asked.preprocessing)
    return pack({}, {"refused": next((reason for reason in reasons if reason is not None), None)})


def _made(values: Mapping[str, Any]) -> Preprocessing:
    return read_received(Preprocessing, dict(values), "a preprocessing of the study")


class OwnTable(StudyTables):
    """A study's data as one silo has them: its own table; of the others the names alone."""

    pools = False

    def inputs(
        self, _training: Sequence[str], _silo: str, _scaling: Scaling = "moments", _rows: Any = None
    ) -> Tensor:
        """Return inputs of the usual kind: those of other silos are not here."""
        return torch.zeros(2, 1)


@dataclass(frozen=True)
class OwnStudy:
    """A study as one silo has it: its own rows, and what the study asks.

    Attributes:
        manifest: of the study.
        table: of the silo.
        floors: of the silo's owner.
    """

    manifest: StudyManifest
    table: SiloTable
    floors: Floors

    @cached_property
    def plan(self) -> StudyPlan:
        """Return the plan as far as it concerns this silo alone."""
        manifest, table = self.manifest, self.table
        settings = StudySettings().with_given(manifest.settings, "study")
        if settings.model is not None and ":" in settings.model:
            raise ProtocolError("the study names a function of somebody's own, which no silo runs")
        if max(settings.seeds, len(settings.thresholds), len(settings.subgroups)) > _MOST_ASKED:
            raise ProtocolError(f"the study asks for more than {_MOST_ASKED} seeds, thresholds or subgroups")
        label = read_received(LabelRule, manifest.label, "the study's label")
        columns = (*table.frame.columns, *table.unused.columns)
        named = [LabelRule.parse(text).column for text in manifest.settings.get("subgroups", ())]
        missing = [
            name for name in dict.fromkeys(named) if name not in columns
        ]  # other silos have these columns
        if missing:
            empty = pl.DataFrame({name: [None] * len(table.y) for name in missing})
            table = replace(table, unused=pl.concat([table.unused, empty], how="horizontal"))
        tables = SiloTables({table.name: table}, manifest.table, label)
        labels = {silo: table.y if silo == table.name else table.y[:0] for silo in manifest.silos}
        patients = {} if table.patients is None else {table.name: table.patients}
        data = OwnTable(manifest.run, manifest.loss, manifest.outputs, labels, tables, patients=patients)
        return StudyPlan(data, replace(settings, subgroups=()))

    @cached_property
    def alone(self) -> dict[str, list[NDArray[Any]]]:
        """Return the cross-validated outputs of the site's own models, by method and seed."""
        plan, name = self.plan, self.table.name
        found = {}
        for method, tasks in (
            (ALONE, plan.alone(name)),
            (alone_regression(plan.data.loss), plan.alone_regression(name)),
        ):
            results = self._performed(tasks)
            outputs = outputs_of_folds(plan, name, tasks, results)
            if outputs is not None:
                found[method] = outputs
        return found

    def _performed(self, tasks: Sequence[AloneTask]) -> list[Result]:
        """Return the results of tasks, done together as in a study at one place."""
        data, found = self.plan.data, dict[int, Result]()
        places = {id(task): place for place, task in enumerate(tasks)}
        for stack in stacks_of(tasks, data):
            results = perform_all(stack, data)
            found |= {places[id(task)]: one for task, one in zip(stack, results, strict=True)}
        return [found[place] for place in range(len(tasks))]

    def answer(
        self, body: bytes, about: Mapping[str, Any], inputs: Callable[[Preprocessing], Tensor]
    ) -> SiteScores:
        """Return the silo's document on models that were trained without it."""
        asked = read_received(EvaluationAsked, about.get("asked"), "the coordinator's models")
        plan, rows = self.plan, len(self.table.y)
        self._require_asked(asked)
        made = [_made(one) for one in asked.preprocessing]
        outputs: dict[str, list[NDArray[Any]]] = {}
        for one, weights in zip(asked.models, _weights(body, asked), strict=True):
            outputs.setdefault(one.method, []).append(self._predicted(one, weights, made, inputs))
        seeds = plan.settings.seeds
        outputs = {method: found * seeds if len(found) == 1 else found for method, found in outputs.items()}
        outputs |= self.alone if plan.settings.references else {}
        if asked.null is not None:
            outputs[NULL] = [np.tile(np.array(asked.null), (rows, 1))] * seeds
        name, subgroups = self.table.name, tuple(self.manifest.settings.get("subgroups", ()))
        told = StudyPlan(plan.data, replace(plan.settings, subgroups=subgroups))
        own = rows_of(told, (name,), outputs, asked.drawn)
        described = describe_site(self.table, _made(asked.everyone), self.floors)
        return score_site(replace(own, description=described), asked_by(told), self.floors)

    def _require_asked(self, asked: EvaluationAsked) -> None:
        """Raise if there are other methods than the study has, or more models of one than seeds."""
        models = Counter(one.method for one in asked.models)
        unknown = set(models) - set(self.plan.algorithms)
        if unknown or max(models.values(), default=0) > self.plan.settings.seeds:
            raise ProtocolError("the coordinator sent other models than those of the study")
        if asked.null is not None and len(asked.null) != self.manifest.outputs:
            raise ProtocolError("the coordinator's model without features has another number of outputs")

    def asked(self) -> list[str]:
        """Return what the study asks of this silo, for its owner, and what it is not told."""
        settings, floors = self.plan.settings, self.floors
        subgroups = tuple(self.manifest.settings.get("subgroups", ()))
        return [
            f"methods: {_shown(self.plan.algorithms)}; rounds: {settings.rounds}; seeds: {settings.seeds}",
            f"thresholds of net benefits: {_shown(settings.thresholds)}; subgroups: {_shown(subgroups)}",
            f"no score of fewer than {floors.least()} events is given, and no count below {floors.min_cell}",
        ]

    def described(self, about: Mapping[str, Any]) -> bytes:
        """Return the silo's description."""
        fitted = read_received(Preprocessing, about.get("everyone"), "the coordinator's question")
        return describe_site(self.table, fitted, self.floors).model_dump_json().encode()

    def _predicted(
        self,
        one: FinalModel,
        weights: Mapping[str, Tensor],
        made: Sequence[Preprocessing],
        inputs: Callable[[Preprocessing], Tensor],
    ) -> NDArray[Any]:
        if one.inputs >= len(made):
            raise ProtocolError("a model names a preprocessing that was not sent")
        newton = find_algorithm(one.algorithm)[1].is_newton
        network: Any = "linear" if newton else one.hidden
        if isinstance(network, str) and network not in ("linear", "mlp"):
            raise ProtocolError(f"the study has the model {network!r}, which silos do not build")
        x = inputs(made[one.inputs])
        model = build_network(network, tuple(x.shape[1:]), self.manifest.outputs, 0)
        if newton:
            model = model.double()
        known = {name: parameter.shape for name, parameter in model.named_parameters()}
        if {name: tuple(shape) for name, shape in known.items()} != {
            name: tuple(tensor.shape) for name, tensor in weights.items()
        }:
            raise ProtocolError("the weights of a model do not fit its network")
        return predict(model, weights, x).double().numpy()


def _shown(values: Iterable[Any]) -> str:
    return printable(", ".join(map(str, values)) or "none")


def _weights(body: bytes, asked: EvaluationAsked) -> list[dict[str, Tensor]]:
    """Return the weights of each model."""
    expected = {}
    for number, one in enumerate(asked.models):
        dtype = torch.float64 if find_algorithm(one.algorithm)[1].is_newton else torch.float32
        for name, shape in one.parameters.items():
            like = torch.empty(shape, dtype=dtype, device="meta")
            expected[f"{MODELS}.{number}/{name}"] = TensorSchema(like)
    groups = unpack(body, expected, len(body))[0]
    return [groups[f"{MODELS}.{number}"] for number in range(len(asked.models))]
