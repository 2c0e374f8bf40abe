"""Messages of stacks: what is sent is what arrives, and what does not fit the declaration is refused."""

from __future__ import annotations

import pytest
import torch

from fedilc.errors import ProtocolError
from fedilc.federation.stacked_client import StackedReply
from fedilc.runtimes.remote.stack_declaration import DeclaredStack, ModelTask, declared, due
from fedilc.runtimes.remote.stack_wire import (
    StackTask,
    answer_schemas,
    max_answer_bytes,
    pack_stack_answer,
    pack_stack_task,
    unpack_stack_answer,
    unpack_stack_task,
    whole_request,
)
from fedilc.training.stack import Lockstep

LABEL = {"text": "died", "column": "died", "loss": "binary", "classes": ["0", "1"]}
NUMBERS = {"features": [{"kind": "number", "name": "age", "mean": 60.0, "scale": 10.0}], "label": LABEL}
OPTIONS = {"rounds": 4, "learning_rate": 0.1, "score_every": 2}


def stack_of(models: int = 3) -> DeclaredStack:
    tasks = [
        ModelTask(
            algorithm="fedsgd",
            options=OPTIONS,
            training=("a", "b"),
            hidden=(2,),
            seed=number,
            scored=("c",),
            inputs=0,
        )
        for number in range(models)
    ]
    return DeclaredStack.model_validate_json(declared(tasks, [NUMBERS]).model_dump_json())


def task_of(lockstep: Lockstep) -> StackTask:
    weights = torch.randn(2, lockstep.network.size, dtype=lockstep.dtype)
    return StackTask("s", "update", 3, [0, 2], weights, scored=[1], shown=weights[:1] * 2)


def test_a_request_arrives_as_it_was_sent_with_a_row_per_model() -> None:
    lockstep = Lockstep(stack_of().runs("binary", 1))
    task = task_of(lockstep)
    found, study, name = unpack_stack_task(pack_stack_task(task, "of-this-study"), lockstep)
    assert (study, name) == ("of-this-study", task.name("of-this-study"))
    assert (found.step, found.round, found.rows, found.scored) == ("update", 3, [0, 2], [1])
    assert torch.equal(found.weights, task.weights)
    assert found.shown is not None
    assert torch.equal(found.shown, task.weights[:1] * 2)
    request = whole_request(found, lockstep)
    assert torch.equal(request.weights[[0, 2]], task.weights)
    assert not request.weights[1].any()
    assert request.counts.tolist() == [2, 2, 2]


@pytest.mark.parametrize("rows", [[0, 3], [2, 0], [1, 1]])
def test_a_request_for_other_rows_is_refused(rows: list[int]) -> None:
    lockstep = Lockstep(stack_of().runs("binary", 1))
    task = task_of(lockstep)
    wrong = StackTask("s", "update", 3, rows, task.weights)
    with pytest.raises(ProtocolError, match="rows that the stack does not have"):
        unpack_stack_task(pack_stack_task(wrong, "x"), lockstep)
    with pytest.raises(ProtocolError, match="not a step of this stack"):
        unpack_stack_task(pack_stack_task(StackTask("s", "evaluate", 3, [], task.weights[:0]), "x"), lockstep)


def test_an_answer_arrives_in_the_order_of_rows_and_may_have_diverged() -> None:
    lockstep = Lockstep(stack_of().runs("binary", 1))
    task, size = task_of(lockstep), lockstep.network.size
    schemas = answer_schemas(task, lockstep, 2, 1)
    parts = [
        StackedReply(
            "a",
            torch.tensor([row]),
            7,
            {"gradient": torch.full((1, size), value)},
            {"loss": torch.tensor([value])},
        )
        for row, value in ((2, float("inf")), (0, 1.0))
    ]
    body = pack_stack_answer(parts, [0.25], forgotten=False)
    assert len(body) <= max_answer_bytes(schemas)
    found = unpack_stack_answer(body, "a", [0, 2], schemas)
    (reply,) = found.replies
    assert (reply.places.tolist(), reply.examples, found.losses) == ([0, 2], 7, [0.25])
    assert reply.tensors["gradient"][0].tolist() == [1.0] * size
    assert torch.isinf(reply.tensors["gradient"][1]).all()
    for wrong in (answer_schemas(task, lockstep, 1, 1), answer_schemas(task, lockstep, 2, 0)):
        with pytest.raises(ProtocolError):
            unpack_stack_answer(body, "a", [0, 2], wrong)
    assert unpack_stack_answer(pack_stack_answer([], [], forgotten=True), "a", [0, 2], schemas).forgotten


def test_a_stack_that_cannot_be_built_here_is_refused() -> None:
    (task, *_), made = stack_of().tasks, [NUMBERS]
    with pytest.raises(ProtocolError, match="does not declare"):
        declared([task.model_copy(update={"inputs": 1})], made).runs("binary", 1)
    with pytest.raises(ProtocolError, match="cannot be trained together"):
        declared([task, task.model_copy(update={"hidden": (3,)})], made).runs("binary", 1)
    with pytest.raises(Exception, match="trains perceptrons and linear models"):
        declared([task.model_copy(update={"hidden": "somebody:function"})], made).runs("binary", 1)
    assert stack_of(2).numbers(1) == 2 * (2 * 2 + 3)


def test_losses_are_due_every_few_rounds_and_at_the_last() -> None:
    task = stack_of().tasks[0].model_copy(update={"options": {**OPTIONS, "rounds": 5}})
    assert [number for number in range(1, 6) if due(task, number, newton=False)] == [2, 4, 5]
    assert not due(task, 5, newton=True)
