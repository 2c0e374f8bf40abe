"""The declaration of a stack whose silos are elsewhere, from which both sides make the same `Lockstep`.

A stack is declared once, by its models and the preprocessing of each set of training silos; messages
(`stack_wire.py`) then name its rows. A declaration holds no code, and nothing is imported because of it.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field, PositiveInt

from fedilc.algorithms.loss_registry import LossName
from fedilc.config import Options
from fedilc.data.silo_store import Outline
from fedilc.errors import ConfigError, ProtocolError
from fedilc.models import build_model
from fedilc.runtimes.remote.manifest import Name, read_received
from fedilc.section import Section, validated
from fedilc.storage.files import json_digest
from fedilc.training.stack import RunElsewhere, stack_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedilc.data.tables.preprocessing import Preprocessing

MOST_MODELS = 20_000
SCORE = "score"  # the step that asks for losses alone
_MOST_WIDTH = 100_000

Widths = Annotated[tuple[PositiveInt, ...], Field(max_length=100)]
Row = Annotated[int, Field(ge=0, lt=MOST_MODELS)]
Names = Annotated[tuple[Name, ...], Field(max_length=100_000)]


class ModelTask(Section):
    """One model of a stack: what it is, on which silos it is trained, and whose losses are recorded.

    `inputs` is its preprocessing, by place; `validation` is the share of each training silo that is left out
    and scored instead; `rows` is how many examples of a silo are used at most.
    """

    algorithm: Name
    options: dict[Name, Any] = Field(max_length=100)
    training: Names
    hidden: Widths | Annotated[str, Field(max_length=100)] | None
    seed: Annotated[int, Field(ge=0, lt=2**53)]
    scored: Names = ()
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    rows: PositiveInt | None = None
    inputs: Annotated[int, Field(ge=0, lt=MOST_MODELS)]

    @property
    def rounds(self) -> int:
        """Return the number of rounds."""
        return int(self.options.get("rounds", 0))

    @property
    def scored_silos(self) -> tuple[str, ...]:
        """Return the silos whose losses are recorded."""
        return (*self.scored, *(self.training if self.validation else ()))

    @property
    def score_every(self) -> int:
        """Return after how many rounds it is scored."""
        return max(1, int(self.options.get("score_every", 1)))


class DeclaredStack(Section):
    """The models of a stack, and the preprocessing of each set of training silos, as JSON."""

    tasks: Annotated[tuple[ModelTask, ...], Field(min_length=1, max_length=MOST_MODELS)]
    preprocessing: Annotated[tuple[dict[str, Any], ...], Field(max_length=MOST_MODELS)]

    @cached_property
    def name(self) -> str:
        """Return a digest of the stack."""
        return json_digest(self.model_dump(mode="json"))[:32]

    @cached_property
    def made(self) -> tuple[Preprocessing, ...]:
        """Return the preprocessings."""
        from fedilc.data.tables.preprocessing import Preprocessing

        what = "the preprocessing of a stack"
        return tuple(read_received(Preprocessing, one, what) for one in self.preprocessing)

    def runs(self, loss: LossName, outputs: int) -> list[RunElsewhere]:
        """Return the runs whose stack this is, with silos that are elsewhere; raise if they are none."""
        made = []
        for task in self.tasks:
            if task.inputs >= len(self.made):
                raise ProtocolError("a stack names a preprocessing that it does not declare")
            made.append(run_of(task, len(self.made[task.inputs].columns), loss, outputs))
        keys = {stack_key(run) for run in made}
        if len(keys) != 1 or None in keys:
            raise ProtocolError("the models of a stack cannot be trained together")
        return made

    def numbers(self, outputs: int) -> int:
        """Return about how many parameters the models have together."""
        total = 0
        for task in self.tasks:
            if task.inputs >= len(self.preprocessing):
                raise ProtocolError("a stack names a preprocessing that it does not declare")
            hidden = task.hidden if isinstance(task.hidden, tuple) else ()
            widths = [len(self.made[task.inputs].columns), *hidden, outputs]
            total += sum(after * (before + 1) for before, after in pairwise(widths))
        return total


def run_of(task: ModelTask, width: int, loss: LossName, outputs: int) -> RunElsewhere:
    """Return one run of a stack: its network with the first weights, and the options of `train`."""
    from fedilc.algorithms import find_algorithm

    given = {key: value for key, value in task.options.items() if key != "score_every"}
    newton = find_algorithm(task.algorithm)[1].is_newton
    if width > _MOST_WIDTH:
        raise ProtocolError(f"a model of a stack has {width} inputs, more than any table")
    network: Any = "linear" if newton else task.hidden
    if isinstance(network, str) and network not in ("linear", "mlp"):
        raise ConfigError(
            f"a study over tables of silos trains perceptrons and linear models, and not the model "
            f"{network!r}; give the widths of its layers in `hidden`"
        )
    name, sizes = ("mlp", {"hidden": network}) if isinstance(network, tuple) else (network, {})
    if name is None:
        raise ConfigError("a study over tables of silos trains no convolutional network; set `hidden`")
    model = build_model(name, (width,), outputs, task.seed, **sizes)
    outline = Outline("study", {silo: {} for silo in task.training}, torch.zeros(2, width), loss)
    options = {**given, "seed": task.seed}
    validated(Options, options)
    return RunElsewhere(outline, model, task.algorithm, options)


def due(task: ModelTask, number: int, newton: bool) -> bool:
    """Return whether losses are recorded after a round; a regression is scored at its minimum alone."""
    at = number % task.score_every == 0 or number == task.rounds
    return at and not newton and bool(task.scored_silos)


def declared(tasks: Sequence[ModelTask], made: Sequence[Mapping[str, Any]]) -> DeclaredStack:
    """Return the declaration of a stack."""
    return DeclaredStack(tasks=tuple(tasks), preprocessing=tuple(dict(one) for one in made))
