"""Requests and replies of stacks as bytes: one message carries the rows of all models that are asked for.

As in `wire.py`, a message is safetensors with a JSON object in the header; the reader knows from the stack's
declaration which tensors must be there, and of which shapes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedilc.errors import ProtocolError
from fedilc.federation.program import HESSIAN, MAX_EXAMPLES, PENALTY_WEIGHT
from fedilc.federation.stacked_client import StackedReply, StackedRequest
from fedilc.runtimes.remote.manifest import read_received
from fedilc.runtimes.remote.stack_declaration import SCORE, Row
from fedilc.runtimes.remote.wire import (
    HEADER_BYTES,
    TensorSchema,
    header_room,
    pack,
    read_header,
    unpack,
)
from fedilc.section import Section
from fedilc.storage.files import byte_size
from fedilc.training.stack import Lockstep

STACK, EXAMPLES, LOSSES = "stack", "examples", "losses"
_ANSWER, _SENT = "answer.", "sent."
_ROW_BYTES = 64  # of a row in the header: its place, and its numbers


class _About(Section):
    """The JSON object of a request."""

    study: str = Field(max_length=64)
    task: str = Field(max_length=64)
    stack: str = Field(max_length=64)
    step: str = Field(max_length=64)
    round: Annotated[int, Field(ge=1, lt=2**31)]
    rows: list[Row]
    scored: list[Row]
    fitted: bool = False
    numbers: dict[str, list[float]]
    scales: dict[str, float]


@dataclass(frozen=True)
class StackTask:
    """A request to the silos of a stack, and whose losses to answer besides.

    Attributes:
        stack: the stack's name.
        step: the step of the program, or "score" for losses alone.
        round: the number of the round.
        rows: the models that are trained, in ascending order.
        weights: of these models, a row each.
        tensors: what the step sends besides, a row each.
        numbers: what the step sends besides, a number each.
        scored: the models whose losses to choose by are asked for, in ascending order.
        shown: the weights of those, a row each.
        fitted: whether these are predicted one by one, as models that are complete.
    """

    stack: str
    step: str
    round: int
    rows: list[int]
    weights: Tensor
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    scored: list[int] = field(default_factory=list)
    shown: Tensor | None = None
    fitted: bool = False

    @classmethod
    def of(
        cls, stack: str, request: StackedRequest, rows: Sequence[int], scored: Sequence[int], shown: Tensor
    ) -> StackTask:
        """Return the request for the rows of a stack that are left."""
        own = list(rows)
        return cls(
            stack,
            request.step,
            request.round,
            own,
            request.weights[own],
            {name: tensor[own] for name, tensor in request.tensors.items()},
            {name: values[own] for name, values in request.numbers.items()},
            list(scored),
            shown[list(scored)],
        )

    def name(self, study: str) -> str:
        """Return the task's name, which is the same after a restart."""
        facts = f"{study} {self.stack} {self.step} {self.round} {self.fitted}"
        return hashlib.sha256(facts.encode()).hexdigest()[:32]


def pack_stack_task(task: StackTask, study: str) -> bytes:
    """Return a request as bytes."""
    about = {
        "study": study,
        "task": task.name(study),
        "stack": task.stack,
        "step": task.step,
        "round": task.round,
        "rows": task.rows,
        "scored": task.scored,
        "fitted": task.fitted,
        "numbers": {name: values.tolist() for name, values in task.numbers.items()},
    }
    tensors = {"weights": task.weights} if task.rows else {}
    tensors |= {f"{_SENT}{name}": tensor for name, tensor in task.tensors.items()}
    if task.scored:
        tensors["shown"] = task.shown if task.shown is not None else task.weights
    return pack({STACK: tensors}, about, digest=True)


def stack_of(body: bytes) -> str:
    """Return the name of the stack that a request is about; "" if it is about none."""
    _, about = read_header(body, HEADER_BYTES + len(body))
    return str(about.get("stack", ""))[:64]


def unpack_stack_task(body: bytes, lockstep: Lockstep) -> tuple[StackTask, str, str]:
    """Return a request, the study that it belongs to and its name; raise if it does not fit the stack."""
    models, size = len(lockstep.members), lockstep.network.size
    room = HEADER_BYTES + models * _ROW_BYTES * 4
    _, found = read_header(body, room)
    about = read_received(_About, found, "the coordinator's task")
    step = lockstep.program.steps.get(about.step)
    if about.step != SCORE and (step is None or not step.answers):
        raise ProtocolError(f"the coordinator asks for {about.step!r}, which is not a step of this stack")
    for rows in (about.rows, about.scored):
        if rows != sorted(set(rows)) or (rows and rows[-1] >= models):
            raise ProtocolError("the coordinator's task names rows that the stack does not have")
    expected: dict[str, Tensor] = {}
    if about.rows:
        expected["weights"] = _like(len(about.rows), size, lockstep.dtype)
        if step is not None:
            for name, like in step.sends.items():
                width, dtype = group_form(lockstep, name, like)
                expected[f"{_SENT}{name}"] = _like(len(about.rows), width, dtype)
    if about.scored:
        expected["shown"] = _like(len(about.scored), size, lockstep.dtype)
    if set(about.numbers) - {PENALTY_WEIGHT} or any(
        len(values) != len(about.rows) for values in about.numbers.values()
    ):
        raise ProtocolError("the coordinator's task has numbers that the step does not take")
    schemas = {f"{STACK}/{name}": TensorSchema(like) for name, like in expected.items()}
    tensors = unpack(body, schemas, room)[0].get(STACK, {})
    empty = torch.empty(0, size, dtype=lockstep.dtype)
    task = StackTask(
        about.stack,
        about.step,
        about.round,
        about.rows,
        tensors.get("weights", empty),
        {name.removeprefix(_SENT): one for name, one in tensors.items() if name.startswith(_SENT)},
        {name: torch.tensor(values, dtype=torch.float64) for name, values in about.numbers.items()},
        about.scored,
        tensors.get("shown"),
        about.fitted,
    )
    return task, about.study, about.task


def whole_request(task: StackTask, lockstep: Lockstep) -> StackedRequest:
    """Return a request with a row for every model of the stack, as its clients take it."""
    models = len(lockstep.members)

    def spread(rows: Tensor) -> Tensor:
        found = torch.zeros(models, *rows.shape[1:], dtype=rows.dtype)
        found[task.rows] = rows
        return found

    counts = torch.tensor([len(member.silos) for member in lockstep.members])
    return StackedRequest(
        task.step,
        task.round,
        spread(task.weights),
        {name: spread(one) for name, one in task.tensors.items()},
        {name: spread(one) for name, one in task.numbers.items()},
        counts,
    )


@dataclass
class StackAnswer:
    """A silo's answer: its replies for the rows that it trains, and the losses that it was asked for.

    `forgotten` says that the silo has lost what it must remember from round to round.
    """

    silo: str
    replies: list[StackedReply]
    losses: list[float]
    forgotten: bool = False


def group_form(lockstep: Lockstep, name: str, like: Mapping[str, Tensor]) -> tuple[int, torch.dtype]:
    """Return how many numbers a model has in a group of tensors, and their type."""
    size = lockstep.network.size
    if name == HESSIAN:
        return size * size, lockstep.dtype
    if like is lockstep.program.weights:
        return size, lockstep.dtype
    (one,) = like.values()
    return one.numel(), one.dtype


def answer_schemas(task: StackTask, lockstep: Lockstep, trained: int, scored: int) -> dict[str, TensorSchema]:
    """Return the tensors of an answer for so many rows; numbers of a model that diverged may be infinite."""
    found: dict[str, Tensor] = {}
    step = lockstep.program.steps.get(task.step)
    if trained and step is not None:
        for name, answer in step.answers.items():
            width, dtype = group_form(lockstep, name, answer.like)
            found[f"{_ANSWER}{name}"] = _like(trained, width, dtype)
        if "loss" in step.numbers:
            found["loss"] = _like(trained, None, torch.float64)
            found[EXAMPLES] = _like(trained, None, torch.int64)
    if scored:
        found[LOSSES] = _like(scored, None, torch.float64)
    return {f"{STACK}/{name}": TensorSchema(like, finite=False) for name, like in found.items()}


def max_answer_bytes(schemas: Mapping[str, TensorSchema]) -> int:
    """Return how large an answer may be."""
    return byte_size(schema.like for schema in schemas.values()) + header_room(schemas) + 8


def pack_stack_answer(replies: Sequence[StackedReply], losses: Sequence[float], forgotten: bool) -> bytes:
    """Return a silo's answer as bytes: rows in ascending order, from replies for some of them each."""
    tensors: dict[str, Tensor] = {}
    if replies:
        order = torch.argsort(torch.cat([reply.places for reply in replies]))
        for name in replies[0].tensors:
            tensors[f"{_ANSWER}{name}"] = torch.cat([reply.tensors[name] for reply in replies])[order]
        if "loss" in replies[0].numbers:
            parts = [torch.full((len(one.places),), one.examples) for one in replies]
            tensors["loss"] = torch.cat([reply.numbers["loss"].double() for reply in replies])[order]
            tensors[EXAMPLES] = torch.cat(parts)[order]
    if losses:
        tensors[LOSSES] = torch.tensor(list(losses), dtype=torch.float64)
    return pack({STACK: tensors}, {"forgotten": forgotten})


def unpack_stack_answer(
    body: bytes, silo: str, rows: Sequence[int], schemas: Mapping[str, TensorSchema]
) -> StackAnswer:
    """Return a silo's answer; raise if it is not what was asked for."""
    _, about = read_header(body, header_room(schemas))
    if about.get("forgotten") is True:
        return StackAnswer(silo, [], [], forgotten=True)
    found: dict[str, Any] = unpack(body, schemas)[0].get(STACK, {}) if schemas else {}
    losses = found[LOSSES].tolist() if LOSSES in found else []
    groups = {name: one for name, one in found.items() if name.startswith(_ANSWER)}
    if not groups:
        return StackAnswer(silo, [], losses)
    examples = found.get(EXAMPLES, torch.ones(len(rows), dtype=torch.int64))
    if int(examples.min()) < 1 or int(examples.max()) > MAX_EXAMPLES:
        raise ProtocolError("its numbers of examples are not valid")
    replies, places = [], torch.tensor(list(rows))
    for count in examples.unique().tolist():
        own = examples == count
        numbers = {"loss": found["loss"][own]} if "loss" in found else {}
        tensors = {name.removeprefix(_ANSWER): one[own] for name, one in groups.items()}
        replies.append(StackedReply(silo, places[own], count, tensors, numbers))
    return StackAnswer(silo, replies, losses)


def _like(rows: int, width: int | None, dtype: torch.dtype) -> Tensor:
    shape = (rows,) if width is None else (rows, width)
    return torch.empty(shape, dtype=dtype, device="meta")
