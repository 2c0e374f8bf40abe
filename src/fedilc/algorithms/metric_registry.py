"""Metrics by name, with their tasks, directions, ranges and headings. This file needs no torch.

Histories, tables, reports, callbacks and the check of what silos send all follow this declaration.
`evaluation/metrics.py` computes the built-in metrics, all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, get_args

from fedilc.algorithms.loss_registry import Task, task_of
from fedilc.algorithms.registry import Registry, first_line
from fedilc.errors import ConfigError, WrongTypeError, listed, nearest

if TYPE_CHECKING:
    from torch import Tensor

TASKS: tuple[Task, ...] = get_args(Task)
_CLASSES: tuple[Task, ...] = ("binary", "multiclass")
_QUANTITIES: tuple[Task, ...] = ("regression",)
_SETS = ("train_", "validation_", "test_")
_TAKEN = ("examples", "domains")  # silos send these beside metrics


@dataclass(frozen=True)
class Metric:
    """A metric in the registry.

    Args:
        heading: its name in tables.
        tasks: tasks for which it is defined.
        higher_is_better: whether a higher value is better.
        summary: a line for `fedilc list`.
        minimum: lowest value that a silo may send.
        maximum: highest value that a silo may send.
        function: function of the outputs and labels of all examples; None for a built-in metric, which every
            run of these tasks has.
    """

    heading: str
    tasks: tuple[Task, ...]
    higher_is_better: bool
    summary: str
    minimum: float = -inf
    maximum: float = inf
    function: Callable[[Tensor, Tensor], object] | None = None


METRICS: Registry[Metric] = Registry(
    "metric",
    {
        "loss": Metric("loss", TASKS, False, "mean loss, which decides the round that is chosen"),
        "accuracy": Metric(
            "accuracy", _CLASSES, True, "share of examples whose predicted class is right", 0, 1
        ),
        "auroc": Metric("AUROC", _CLASSES, True, "area under the ROC curve", 0, 1),
        "auprc": Metric("AUPRC", _CLASSES, True, "average precision", 0, 1),
        "rmse": Metric("RMSE", _QUANTITIES, False, "root mean squared error"),
        "mae": Metric("MAE", _QUANTITIES, False, "mean absolute error"),
        "r2": Metric("R²", _QUANTITIES, True, "share of the variance that is explained", maximum=1),
    },
)


def register(
    name: str,
    function: Callable[[Tensor, Tensor], object],
    *,
    higher_is_better: bool,
    tasks: Sequence[Task] = ("binary",),
    heading: str = "",
    summary: str = "",
) -> None:
    """Add your own metric under a new name; silos on other machines must have it installed too.

    A run measures it if its option `metrics` names it. Histories then hold it as "validation_NAME", the mean
    over silos, and "test_NAME"; tables and reports show both, and `EarlyStopping` can monitor them.

    Args:
        name: its name, of letters, digits and underscores.
        function: takes outputs and labels, and returns a number; None or NaN if it is not defined. Outputs
            are logits of shape (examples,) for "binary", (examples, classes) for "multiclass", and
            predictions of shape (examples,) for "regression".
        higher_is_better: whether a higher value is better.
        tasks: tasks for which it is defined.
        heading: its name in tables; `name` if it is empty.
        summary: a line for `fedilc list`; the first line of the function's docstring if it is empty.

    Raises:
        ConfigError: if the name is taken or not valid, or a task is unknown.
        WrongTypeError: if the function cannot be called.

    >>> register("recall", lambda logits, y: (logits[y > 0.5] > 0).double().mean(), higher_is_better=True)
    >>> metric_of("validation_recall").tasks
    ('binary',)
    >>> METRICS.unregister("recall")
    """
    if not callable(function):
        raise WrongTypeError(
            f"register() was given {type(function).__name__} as the metric {name!r}; give a function of "
            "outputs and labels"
        )
    if not (isinstance(name, str) and name.isidentifier()) or name in _TAKEN:
        raise ConfigError(
            f"{name!r} cannot be the name of a metric; use letters, digits and underscores, and neither "
            f"{' nor '.join(_TAKEN)}"
        )
    for task in tasks:
        if task not in TASKS:
            raise ConfigError(f"task={task!r} is unknown{nearest(str(task), TASKS)}")
    direction = "higher" if higher_is_better else "lower"
    text = "; ".join(filter(None, (summary or first_line(function), f"{direction} is better")))
    entry = Metric(heading or name, tuple(tasks), higher_is_better, text, function=function)
    METRICS.register(name, entry)


def metric_of(key: str) -> Metric | None:
    """Return the metric of a key of a record, such as "validation_auroc"; None if the key is no metric.

    >>> metric_of("test_rmse").higher_is_better, metric_of("norms")
    (False, None)
    """
    name = next((key.removeprefix(part) for part in _SETS if key.startswith(part)), key)
    return METRICS.get(name) if name in METRICS.names() else None


def metrics_of(loss: str, chosen: Sequence[str] = ()) -> dict[str, Metric]:
    """Return the metrics of a run: those that its task always has, and the chosen ones.

    >>> list(metrics_of("huber"))
    ['loss', 'rmse', 'mae', 'r2']
    """
    task = task_of(loss)
    for name in chosen:
        if task not in METRICS.get(name).tasks:
            tasks = listed(METRICS.get(name).tasks)
            raise ConfigError(f"metric {name!r} is for {tasks} labels, not for {task} labels; leave it out")
    every = ((name, METRICS.get(name)) for name in METRICS.names())
    return {n: m for n, m in every if task in m.tasks and (m.function is None or n in chosen)}
