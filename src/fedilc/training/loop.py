"""The training loop: rounds, callbacks and the run folder."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fedilc.algorithms.loss_name import task_of
from fedilc.config import Options
from fedilc.errors import ConfigError, DivergedError, FedILCWarning, silos_with_reasons
from fedilc.evaluation import measure, thresholded_areas
from fedilc.federation import Program, Record, RunFolder, Runtime, Server
from fedilc.federation.control_variates import FOLDER as SILO_STATES
from fedilc.federation.outliers import AGAINST_ROUNDS, NormBound, against_sentence
from fedilc.federation.run_folder import PREPROCESSING
from fedilc.federation.silo_selection import SiloSelection
from fedilc.federation.silo_weights import make_weights
from fedilc.federation.tensor_files import warn_if_not_written, write_atomically
from fedilc.gradients.optimizers import RateSchedule, make_optimizer
from fedilc.gradients.penalty_weight import PenaltySchedule
from fedilc.training.callbacks import Callback, KeepBest, Run, refuse_key
from fedilc.training.model_card import FILE as CARD
from fedilc.training.model_card import model_card
from fedilc.training.records import flatten
from fedilc.training.result import Result
from fedilc.training.specification import Specification, run_facts


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
    return Server(
        model=model,
        optimizer=make_optimizer(
            algorithm.optimizer,
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
        on_divergence=options.on_divergence,
    )


class Training:
    """A run: its specification, the runtime that reaches its silos, and the server."""

    def __init__(self, spec: Specification, runtime: Runtime) -> None:
        self.spec, self.runtime = spec, runtime
        self.outline, self.options, self.model = spec.outline, spec.options, spec.model
        if runtime.leads:
            spec.note_settings()
        self._noted_sizes = not runtime.leads or spec.note_sizes(self.outline.facts)
        runtime.silos = runtime.silos or self.outline.silos
        self.server = make_server(self.model, runtime, spec.program, self.options)

    def _test(self) -> dict[str, float | None]:
        """Return the metrics of the out-of-distribution test set; of several processes, one measures them."""
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

    def run(
        self,
        callbacks: list[Callback],
        out: str | os.PathLike[str] | None,
        resume: bool,
        settings: dict[str, Any],
    ) -> Result:
        """Train all rounds that are left, and return the result."""
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

    def _require_converged(self, rounds: int) -> None:
        """Raise if Newton's method has not found its minimum: its weights are no regression."""
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
                f"round {number} went on without {silos_with_reasons(record['set_aside'])}",
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

    def _note_against(self, number: int, record: Record) -> None:
        """Warn of silos elsewhere that this round finds to point against the others."""
        found = record.get("against", {}).items()
        new = {silo: against_sentence(rounds) for silo, rounds in found if rounds == AGAINST_ROUNDS}
        if new and self.runtime.sets_aside:
            warnings.warn(
                f"round {number}: {silos_with_reasons(new)} may have wrong labels, a fault or bad "
                "intent, or be unlike the others; look at its data, and train once without it",
                FedILCWarning,
                stacklevel=2,
            )

    def _begin(self, run: Run) -> int:
        """Return the round to continue after; all processes continue from the state of the leading one."""
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

    def open_folder(self, folder: RunFolder, resume: bool, settings: dict[str, Any], run: Run) -> None:
        """Begin a run in the folder, or restore the one that is in it."""
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


def _keepers(callbacks: Sequence[Callback]) -> list[Callback]:
    """Return callbacks that keep the best rounds' weights, unless the caller has given them."""
    brought = {callback.criterion for callback in callbacks if isinstance(callback, KeepBest)}
    return [KeepBest(criterion) for criterion in ("validation", "oracle") if criterion not in brought]
