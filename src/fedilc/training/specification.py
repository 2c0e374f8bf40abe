"""The specification of a run: its data in outline, its model, its algorithm's parts and its steps."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from fedilc.aggregation import WeightedGeometricMean
from fedilc.algorithms import Algorithm, LocalSteps, find_algorithm
from fedilc.algorithms.loss_name import LOSSES, task_of
from fedilc.config import Options
from fedilc.data.digest import weights_digest
from fedilc.data.inputs import Inputs, require_one_input, shape_of, shape_text, tensors_of
from fedilc.data.outline import Outline, data_facts
from fedilc.errors import ConfigError, FedILCError, FedILCWarning, ModelError
from fedilc.federation import Program
from fedilc.federation.program import unused_options
from fedilc.gradients import Loss, ModelRunner, find_device, logits_layer, require_logits, require_supported
from fedilc.gradients.newton import prepared_for_newton
from fedilc.gradients.optimizers import make_optimizer
from fedilc.models import input_hint

_TIMES_LARGER = 10
_LEAST_ROBUST = 3


@dataclass(frozen=True)
class Specification:
    """A run without its runtime, checked as far as that is possible without asking a silo.

    Attributes:
        outline: what is known of the data here.
        name: of the algorithm.
        algorithm: with the parts that the options replace, by name unless the caller has given objects.
        options: every other setting.
        runner: runs the copy of the model that is trained, on its device.
        program: the algorithm with its parts, and the steps of a round.
        outputs: how many logits the model gives.
    """

    outline: Outline
    name: str
    algorithm: Algorithm
    options: Options
    runner: ModelRunner
    program: Program
    outputs: int

    @property
    def model(self) -> nn.Module:
        """Return the copy of the model that is trained, on its device."""
        return self.runner.model

    @classmethod
    def of(
        cls, outline: Outline, model: nn.Module, algorithm: str | Algorithm, options: Options
    ) -> Specification:
        """Return the specification of a run of a copy of `model`; raise if it cannot work."""
        name, found = find_algorithm(algorithm)
        found = found.configured(options)
        model = copy.deepcopy(model).to(find_device(options.device))
        outline = _with_loss(outline, options.loss)
        loss = Loss(outline.loss)
        if found.losses and loss.name not in found.losses:
            raise ConfigError(
                f"{name} is for the loss {' or '.join(found.losses)}, and the data have the loss "
                f"{loss.name}; choose another algorithm"
            )
        if found.is_newton:
            if LOSSES.get(loss.name).function is not None:
                raise ConfigError(
                    f"{name} takes Newton's steps, which need a built-in loss, and {loss.name!r} is not one; "
                    "choose another algorithm"
                )
            require_one_input(outline.sample, name)
            model = prepared_for_newton(model)
        built = found.built(options.for_parts)
        if found.local is not None:
            _require_local_optimizer(found.local)
        require_supported(model, environments=found.votes and options.environment_size is not None)
        runner = ModelRunner(model, loss)
        sample, outputs = _try_model(runner, outline.sample)
        loss.try_out(torch.zeros(2, outputs, dtype=runner.dtype, device=runner.device))
        if loss.has_classes:
            require_logits(model, sample)
        program = Program.of(built, outline.loss, options, model, partial(logits_layer, model, loss, sample))
        runner.use_classifier(program.classifier)
        _require_sides(program, len(outline.silos), options)
        return cls(outline, name, found, options, runner, program, outputs)

    def note_settings(self) -> None:
        """Say which settings leave out something that the algorithm is about, or change nothing in it."""
        if self.algorithm.votes and self.options.environment_size is None:
            _say(
                f"{self.name} works on environments inside a silo, but environment_size is None, "
                "so that each silo is one environment; set environment_size to 1 or to a batch size"
            )
        for key, value in unused_options(self.algorithm, self.options).items():
            _say(f"{key}={value} changes nothing in {self.name}: no part of it takes it")

    def note_sizes(self, silos: Mapping[str, Mapping[str, Any]]) -> bool:
        """Say that silos count equally, if one has ten times the training examples of another or more.

        Return whether their sizes are known.
        """
        sizes = {silo: int(facts["examples"]) for silo, facts in silos.items() if "examples" in facts}
        if not sizes or self.algorithm.silo_weights != "equal":
            return bool(sizes)
        smallest, largest = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
        if sizes[largest] < _TIMES_LARGER * sizes[smallest]:
            return True
        choice = 'set silo_weights = "examples" to count examples instead'
        if not self.algorithm.takes_mean:
            choice = (
                "an algorithm that takes a mean across silos can count examples instead (silo_weights = "
                '"examples"), and a geometric mean cannot: leave very small silos out, or join them'
            )
        _say(
            f"silo {smallest!r} has {sizes[smallest]} training examples and {largest!r} has "
            f"{sizes[largest]}, and each silo counts equally; {choice}"
        )
        return True


def _with_loss(outline: Outline, chosen: str | None) -> Outline:
    """Return the outline with the loss that a run chooses for the labels of its data."""
    if chosen is None:
        return outline
    if task_of(chosen) != task_of(outline.loss):
        raise ConfigError(
            f"loss={chosen!r} is for {task_of(chosen)} labels, and the data have {task_of(outline.loss)} "
            "labels; choose another loss"
        )
    return replace(outline, loss=chosen)


def _require_sides(program: Program, silos: int, options: Options) -> None:
    """Raise if a round has too few silos for what the aggregation drops."""
    asked = min(silos, options.silos_per_round or silos)
    inter = program.inter
    if isinstance(inter, WeightedGeometricMean) and inter.min_side > asked:
        raise ConfigError(
            f"min_side={inter.min_side} drops every value, because a round asks {asked} silos; lower min_side"
        )
    if inter.keeps_values and asked < _LEAST_ROBUST:
        raise ConfigError(
            f"inter={program.algorithm.name('inter')!r} drops values at both ends, and a round asks {asked} "
            f"silos; it needs at least {_LEAST_ROBUST}"
        )


def _require_local_optimizer(local: LocalSteps) -> None:
    """Raise if silos could not take their steps; they would find out only in the first round."""
    options = {"momentum": local.momentum} if local.momentum else {}
    make_optimizer(local.optimizer, [nn.Parameter(torch.zeros(1))], local.learning_rate, 0.0, options)


def _try_model(runner: ModelRunner, inputs: Inputs) -> tuple[Inputs, int]:
    """Run the model on two examples, to report what cannot work before the first round."""
    sample, model = runner.inputs(inputs), runner.model
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        runner.example_bytes(sample)
        logits = runner.predict(sample)
    except FedILCError:
        raise
    except Exception as error:  # a user's network may raise anything
        types = ", ".join(str(part.dtype) for part in tensors_of(sample))
        raise ConfigError(
            f"the model cannot take inputs of shape {shape_text(shape_of(sample))} and type {types}: "
            f"{input_hint(sample, error)}"
        ) from error
    if len(logits) != len(sample):
        raise ModelError(
            f"the model gives {len(logits)} outputs for {len(sample)} examples; it must give one each"
        )
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise ModelError(
                f"the buffer {name!r} changes in the forward pass, and buffers are never sent "
                "between silos and server; use a layer without running statistics"
            )
    return sample, logits.shape[1]


def run_facts(spec: Specification) -> dict[str, Any]:
    """Return what identifies a run, for its folder: settings, digests of data and of initial weights.

    With them is what a user of the model must know: the inputs' columns in order and the label's name, if
    they have any, and the class that each logit stands for (one logit stands for 1 against 0).
    """
    outline = spec.outline
    return {
        "federation": outline.name,
        **data_facts(outline),
        "loss": outline.loss,
        "columns": list(outline.columns) or None,
        "label": outline.label,
        "classes": _classes(spec),
        "model": {
            "layers": repr(spec.model),
            "weights": weights_digest(spec.model),
            "inputs": shape_of(outline.sample),
            "outputs": spec.outputs,
        },
        "algorithm": spec.name,
        "choices": spec.program.algorithm.describe(),
        **spec.options.model_dump(include={*Options.model_fields, *spec.options.part_options} - {"loss"}),
    }


def _say(sentence: str) -> None:
    warnings.warn(sentence, FedILCWarning, stacklevel=3)


def _classes(spec: Specification) -> list[int] | None:
    """Return the labels of the classes that the model tells apart; None if it predicts a quantity."""
    if not spec.runner.loss.has_classes:
        return None
    first = spec.outline.first_label
    return [0, 1] if task_of(spec.outline.loss) == "binary" else list(range(first, first + spec.outputs))
