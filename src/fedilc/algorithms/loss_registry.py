"""Losses by name, and the task of each. This file needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from fedilc.algorithms.registry import Registry, first_line
from fedilc.errors import ConfigError, WrongTypeError, nearest
from fedilc.section import SENTENCE

if TYPE_CHECKING:
    from torch import Tensor

Task = Literal["binary", "multiclass", "regression"]


@dataclass(frozen=True)
class LossEntry:
    """A loss in the registry.

    Args:
        task: what labels and outputs are: "binary" (labels 0 and 1, one logit), "multiclass" (class numbers,
            one logit per class) or "regression" (quantities, one number).
        summary: a line for `fedilc list`.
        function: the loss of each example, from outputs and labels; None if `Loss` has it in closed form.
    """

    task: Task
    summary: str
    function: Callable[[Tensor, Tensor], Tensor] | None = None


LOSSES: Registry[LossEntry] = Registry(
    "loss",
    {
        "binary": LossEntry("binary", "cross-entropy of one logit and labels 0 and 1"),
        "multiclass": LossEntry("multiclass", "cross-entropy of one logit per class"),
        "regression": LossEntry("regression", "half the squared error of one output"),
        "huber": LossEntry("regression", "half the squared error up to an error of 1, and linear beyond it"),
    },
    plural="losses",
)


def register(
    name: str, function: Callable[[Tensor, Tensor], Tensor], task: Task = "binary", summary: str = ""
) -> None:
    """Add your own loss under a new name; silos on other machines must have it installed too.

    Its gradients come from autograd, also those that Fishr needs. Newton's method takes only built-in losses.

    Args:
        name: its name in `Federation(loss=...)`, `train(loss=...)` and TOML files.
        function: takes outputs and labels and returns the loss of each example, in a tensor of one number per
            example. Both are of shape (examples,) for "binary" and "regression"; "multiclass" has logits of
            shape (examples, classes), and whole numbers as labels. Torch's own losses fit, with
            reduction="none". The loss of an example must depend on that example alone.
        task: what labels are: "binary" (0 and 1), "multiclass" (class numbers) or "regression" (quantities).
        summary: a line for `fedilc list`; the first line of the function's docstring if it is empty.

    Raises:
        ConfigError: if the name is taken, or the task is unknown.
        WrongTypeError: if the function cannot be called.

    >>> from torch.nn.functional import l1_loss
    >>> register("absolute", lambda outputs, y: l1_loss(outputs, y, reduction="none"), "regression")
    >>> task_of("absolute")
    'regression'
    >>> LOSSES.unregister("absolute")
    """
    if not callable(function):
        raise WrongTypeError(
            f"register() was given {type(function).__name__} as the loss {name!r}; give a function of "
            "outputs and labels"
        )
    if task not in get_args(Task):
        raise ConfigError(f"task={task!r} is unknown{nearest(str(task), get_args(Task))}")
    LOSSES.register(name, LossEntry(task, summary or first_line(function), function))


def _known(name: str) -> str:
    try:
        LOSSES.get(name)
    except ConfigError as error:
        raise PydanticCustomError(SENTENCE, "{why}", {"why": str(error)}) from error
    return name


LossName = Annotated[str, AfterValidator(_known)]


def task_of(loss: str) -> Task:
    """Return the task of a loss.

    >>> task_of("huber")
    'regression'
    """
    return LOSSES.get(loss).task


def has_classes(loss: str) -> bool:
    """Return whether labels are class numbers and not quantities.

    >>> has_classes("multiclass"), has_classes("huber")
    (True, False)
    """
    return task_of(loss) != "regression"
