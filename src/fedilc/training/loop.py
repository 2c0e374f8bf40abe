"""Train one run: the loop over its rounds (`Training`), and what it starts from (`Specification`).

`Training.run` opens the run folder, then repeats: a round of the server, the test set, callbacks, a
checkpoint.
"""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedilc.aggregation import WeightedGeometricMean
from fedilc.algorithms import Algorithm, LocalSteps, find_algorithm
from fedilc.algorithms.loss_registry import LOSSES, task_of
from fedilc.config import Options
from fedilc.data.digests import weights_digest
from fedilc.data.inputs import Inputs, require_one_input, shape_of, shape_text, tensors_of
from fedilc.data.silo_store import Outline, data_facts
from fedilc.errors import (
    ConfigError,
    DivergedError,
    FedILCError,
    FedILCWarning,
    ModelError,
    silos_with_reasons,
)
from fedilc.evaluation import measure, thresholded_areas
from fedilc.federation import Program, Record, Server
from fedilc.federation.averaging import DECAY, SHARE, WeightAverage
from fedilc.federation.control_variates import FOLDER as SILO_STATES
from fedilc.federation.outliers import AGAINST_ROUNDS, NormBound, against_sentence
from fedilc.federation.program import unused_options
from fedilc.federation.server import SiloSelection
from fedilc.federation.step_sums import make_weights
from fedilc.gradients import Loss, ModelRunner, find_device, logits_layer, require_logits, require_supported
from fedilc.gradients.newton import prepared_for_newton
from fedilc.gradients.penalty_weight import PenaltySchedule
from fedilc.models import input_hint
from fedilc.optimizers.optimizers import RateSchedule, make_optimizer
from fedilc.storage.files import warn_if_not_written, write_atomically
from fedilc.storage.run_folder import PREPROCESSING, RunFolder
from fedilc.training.callbacks import Callback, KeepBest, Run, refuse_key
from fedilc.training.model_card import FILE as CARD
from fedilc.training.model_card import model_card
from fedilc.training.result import Result, flatten

if TYPE_CHECKING:
    from fedilc.runtimes.base import Runtime


_TIMES_LARGER = 10
_LEAST_ROBUST = 3


class Training:
    """A run: its specification, the runtime that reaches its silos, and the server."""

    def __init__(self, spec: Specification, runtime: Runtime) -> None:
        self.spec, self.runtime = spec, runtime
        self.outline, self.options, self.model = spec.outline, spec.options, spec.model
        if not runtime.sums_only:
            spec.options.refuse_secure()
        if runtime.leads:
            spec.note_settings()
        self._noted_sizes = not runtime.leads or spec.note_sizes(self.outline.facts)
        runtime.silos = runtime.silos or self.outline.silos
        self.server = make_server(self.model, runtime, spec.program, self.options)

    def run(
        self,
        callbacks: list[Callback],
        out: str | os.PathLike[str] | None,
        resume: bool,
        settings: dict[str, Any],
    ) -> Result:
        """Train the remaining rounds, and return the result.

        In order: open or restore the run folder; start callbacks; train round after round until a callback
        stops the run; end callbacks; write the model card.
        """
        if resume and out is None:
            raise ConfigError("resume=True needs out=..., the folder of the run to continue")
        leads = self.runtime.leads
        folder = RunFolder(out) if out is not None and leads else None
        callbacks = [*_keepers(callbacks), *callbacks] if leads else []
        for key in (key for callback in callbacks for key in callback.keys):
            if self.outline.never_records(key):
                refuse_key(key)
        run = Run(self.options.rounds, out=folder.path if folder else None)
        run.weights = self.server.weights
        try:
            if folder is not None:
                self.open_folder(folder, resume, settings, run)
            for callback in callbacks:
                callback.on_start(run)
            for number in range(self._begin(run) + 1, self.options.rounds + 1):
                if self.runtime.broadcast({}, {"stopped": run.stopped})[1]["stopped"] is not None:
                    break
                self._round(number, run, callbacks, folder)
            self._require_converged(len(run.history))
            for callback in callbacks:
                callback.on_end(run)
            result = self._result(run, callbacks)
            if folder is not None:
                self._write_card(folder, result)
        finally:
            if folder is not None:
                folder.release()
        return result

    def open_folder(self, folder: RunFolder, resume: bool, settings: dict[str, Any], run: Run) -> None:
        """Begin a run in the folder, or restore the run that it holds."""
        facts = run_facts(self.spec)
        facts |= settings | {"model": settings.get("model", {}) | facts["model"]}
        if not resume:
            made = self.outline.preprocessing
            text = None if made is None else f"{made.model_dump_json(indent=2)}\n".encode()
            folder.create(facts, {} if text is None else {PREPROCESSING: text})
            return
        saved = folder.resume(facts)
        if saved is not None:
            self.server.restore(saved.tensors, saved.facts, saved.history)
            run.history, run.stopped = saved.history, saved.stopped

    def _begin(self, run: Run) -> int:
        """Return the last completed round; all processes continue from the state of the leading one."""
        facts: dict[str, Any] = {
            "history": run.history,
            "server": self.server.facts(),
            "out": None if run.out is None else str(run.out),
        }
        tensors, facts = self.runtime.broadcast(self.server.tensors(), facts)
        if not self.runtime.leads:
            run.history = facts["history"]
            self.server.restore(tensors, facts["server"], run.history)
        if facts["out"] is not None:
            self.runtime.state_folder = Path(facts["out"]) / SILO_STATES
        return len(run.history)

    def _round(self, number: int, run: Run, callbacks: list[Callback], folder: RunFolder | None) -> None:
        started = time.perf_counter()
        due = number % self.options.evaluate_every == 0 or number in (1, self.options.rounds)
        found = self.server.round(number, evaluate=due)
        if "validation" in found and self.outline.x_test is not None:
            found["test"] = self._test()
        record = flatten(found)
        seconds = time.perf_counter() - started
        if not self._noted_sizes:
            self._noted_sizes = self.spec.note_sizes(record.get("silos", {}))
        run.history.append(record)
        if "set_aside" in record and self.runtime.leads:
            warnings.warn(
                f"round {number} continued without {silos_with_reasons(record['set_aside'])}",
                FedILCWarning,
                stacklevel=2,
            )
        self._note_against(number, record)
        for callback in callbacks:
            callback.on_round(run, record)
        if self.server.converged:
            run.stop("converged")
        if folder is not None:
            folder.save(record, seconds, self.server.tensors(), self.server.facts(), run.stopped)

    def _test(self) -> dict[str, float | None]:
        """Return the metrics of the out-of-distribution test set; only the leading process has them."""
        assert self.outline.x_test is not None
        assert self.outline.y_test is not None
        runner = self.spec.runner
        x = self.outline.x_test
        logits = self.runtime.compute_rows(lambda rows: runner.predict(runner.inputs(x[rows])), len(x))
        if not self.runtime.leads:
            return {}
        y = runner.labels(self.outline.y_test)
        found = measure(runner.loss, logits, y, self.options.metrics)
        if self.options.thresholded_batch is not None and task_of(runner.loss.name) == "binary":
            areas = thresholded_areas(logits, y, self.options.thresholded_batch)
            found |= {f"thresholded_{key}": area for key, area in areas.items()}
        return found

    def _note_against(self, number: int, record: Record) -> None:
        """Warn of silos elsewhere whose updates have pointed against the others up to this round."""
        found = record.get("against", {}).items()
        new = {silo: against_sentence(rounds) for silo, rounds in found if rounds == AGAINST_ROUNDS}
        if new and self.runtime.sets_aside:
            warnings.warn(
                f"round {number}: {silos_with_reasons(new)} may have wrong labels, a fault or bad intent, or "
                "differ from the others; look at its data, and train once without it",
                FedILCWarning,
                stacklevel=2,
            )

    def _require_converged(self, rounds: int) -> None:
        """Raise if Newton's method has not found the minimum: its weights would not be the regression."""
        if self.spec.algorithm.is_newton and not self.server.converged:
            raise DivergedError(
                f"{self.spec.name} has not converged after {rounds} rounds; raise rounds, or the ridge "
                "(weight_decay)"
            )

    def _result(self, run: Run, callbacks: list[Callback]) -> Result:
        for parameter in self.model.parameters():
            parameter.data = parameter.data.contiguous()
        kept = {
            callback.criterion: (callback.round, callback.weights)
            for callback in callbacks
            if isinstance(callback, KeepBest) and callback.round is not None
        }
        return Result(self.model.eval(), run.history, self.spec.name, run.stopped, kept)

    def _write_card(self, folder: RunFolder, result: Result) -> None:
        """Write the model card; a folder that cannot be written does not end the run."""
        path = folder.path / CARD
        with warn_if_not_written(path):
            write_atomically(path, model_card(folder.settings(), result, self.outline).encode())


def _keepers(callbacks: Sequence[Callback]) -> list[Callback]:
    """Return callbacks that keep the weights of the best rounds, unless the caller gave such callbacks."""
    brought = {callback.criterion for callback in callbacks if isinstance(callback, KeepBest)}
    return [KeepBest(criterion) for criterion in ("validation", "oracle") if criterion not in brought]


def make_server(model: nn.Module, runtime: Runtime, program: Program, options: Options) -> Server:
    """Return a server that trains `model` itself, with these settings, over a runtime."""
    silos, algorithm = runtime.silos, program.algorithm
    if options.min_silos is not None and options.min_silos > len(silos):
        raise ConfigError(f"min_silos={options.min_silos} is more than the {len(silos)} silos there are")
    schedule = PenaltySchedule(options.penalty_weight, options.penalty_anneal_rounds, options.penalty_start)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate = RateSchedule(
        options.learning_rate_schedule,
        options.rounds,
        options.warmup_rounds,
        options.decay_rounds,
        options.decay_factor,
    )
    average = WeightAverage(
        None if algorithm.is_newton else options.average,
        options.rounds,
        options.average_decay or DECAY,
        options.average_share or SHARE,
    )
    return Server(
        model=model,
        optimizer=make_optimizer(
            str(algorithm.optimizer),
            trainable,
            options.learning_rate,
            options.weight_decay,
            algorithm.optimizer_options,
        ),
        runtime=runtime,
        program=program,
        selection=SiloSelection(runtime, NormBound(options.outlier_factor), options),
        silo_weights=make_weights(algorithm.silo_weights, silos, options.weights_step, options.weights_power),
        schedule=schedule if program.penalty is not None else None,
        rate=rate,
        average=average,
        on_divergence=options.on_divergence,
    )


@dataclass(frozen=True)
class Specification:
    """A run without its runtime, checked as far as possible without asking a silo.

    Attributes:
        outline: what this process knows about the data.
        name: name of the algorithm.
        algorithm: the algorithm with the parts that the options choose, as names unless objects were given.
        options: all other settings.
        runner: runs the copy of the model that is trained, on its device.
        program: the algorithm with its parts as objects, and the steps of a round.
        outputs: number of logits of the model.
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
        """Return the specification of a run that trains a copy of `model`; raise if it cannot work."""
        name, found = find_algorithm(algorithm)
        found = found.configured(options)
        model = copy.deepcopy(model).to(find_device(options.device))
        outline = _with_loss(outline, options.loss)
        loss = Loss(outline.loss)
        if found.losses and loss.name not in found.losses:
            raise ConfigError(
                f"{name} needs the loss {' or '.join(found.losses)}, but the data have the loss {loss.name}; "
                "choose another algorithm"
            )
        if found.is_newton:
            if LOSSES.get(loss.name).function is not None:
                raise ConfigError(
                    f"{name} takes Newton steps, which need a built-in loss, but {loss.name!r} is not "
                    "built-in; choose another algorithm"
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
        """Warn about settings that turn off something that the algorithm is about, or change nothing."""
        if self.algorithm.votes and self.options.environment_size is None:
            _say(
                f"{self.name} works on environments inside a silo, but environment_size is None, so each "
                "silo is one environment; set environment_size to 1 or to a batch size"
            )
        for key, value in unused_options(self.algorithm, self.options).items():
            _say(f"{key}={value} has no effect in {self.name}: none of its parts has this option")

    def note_sizes(self, silos: Mapping[str, Mapping[str, Any]]) -> bool:
        """Warn that silos count equally if one has at least ten times the training examples of another.

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
                '"examples"), but a geometric mean cannot: leave very small silos out, or join them'
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
            f"loss={chosen!r} is for {task_of(chosen)} labels, but the data have {task_of(outline.loss)} "
            "labels; choose another loss"
        )
    return replace(outline, loss=chosen)


def _require_sides(program: Program, silos: int, options: Options) -> None:
    """Raise if the aggregation would drop all silos of a round."""
    asked = min(silos, options.silos_per_round or silos)
    inter = program.inter
    if isinstance(inter, WeightedGeometricMean) and inter.min_side > asked:
        raise ConfigError(
            f"min_side={inter.min_side} drops every value, because a round asks only {asked} silos; lower "
            "min_side"
        )
    if inter.keeps_values and asked < _LEAST_ROBUST:
        raise ConfigError(
            f"inter={program.algorithm.name('inter')!r} drops values at both ends, but a round asks only "
            f"{asked} silos; it needs at least {_LEAST_ROBUST}"
        )


def _require_local_optimizer(local: LocalSteps) -> None:
    """Raise if the optimiser for local steps cannot be made; silos would notice only in the first round."""
    options = {"momentum": local.momentum} if local.momentum else {}
    make_optimizer(local.optimizer, [nn.Parameter(torch.zeros(1))], local.learning_rate, 0.0, options)


def _try_model(runner: ModelRunner, inputs: Inputs) -> tuple[Inputs, int]:
    """Return the sample as inputs and the number of outputs; raise if the model cannot work with it."""
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
            f"the model gives {len(logits)} outputs for {len(sample)} examples; it must give one per example"
        )
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise ModelError(
                f"the buffer {name!r} changes in the forward pass, but buffers are never sent between silos "
                "and server; use a layer without running statistics"
            )
    return sample, logits.shape[1]


def run_facts(spec: Specification) -> dict[str, Any]:
    """Return what identifies a run, for its folder: settings, digests of data and of initial weights.

    They also hold what a user of the model must know: the columns of the inputs in order and the name of the
    label, if they have names, and the class of each logit (a single logit is for class 1 against 0).
    """
    outline = spec.outline
    backbone = getattr(outline.preprocessing, "backbone", None)
    return {
        "federation": outline.name,
        **({"backbone": backbone.model_dump()} if backbone is not None else {}),
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


def _classes(spec: Specification) -> list[int] | None:
    """Return the labels of the model's classes; None if it predicts a quantity."""
    if not spec.runner.loss.has_classes:
        return None
    first = spec.outline.first_label
    return [0, 1] if task_of(spec.outline.loss) == "binary" else list(range(first, first + spec.outputs))


def _say(sentence: str) -> None:
    warnings.warn(sentence, FedILCWarning, stacklevel=3)
