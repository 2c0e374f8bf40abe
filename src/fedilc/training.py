"""`train`: one call from a federation and a model to a trained copy and its history."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedilc.algorithms import Algorithm
from fedilc.assembly import Outline, make_server
from fedilc.callbacks import Callback, KeepBest, Run, as_callback, refuse_key
from fedilc.config import Options
from fedilc.data import Federation
from fedilc.data.checks import check_federation
from fedilc.data.shelf import Shelf
from fedilc.errors import ConfigError, FedILCWarning
from fedilc.evaluation import measure, thresholded_areas
from fedilc.federation import Record, RunFolder, Runtime
from fedilc.federation.outliers import sentence
from fedilc.federation.silo_state import FOLDER as SILO_STATES
from fedilc.records import flatten
from fedilc.result import Result
from fedilc.runtimes.distributed import runtime_here
from fedilc.sections import validated
from fedilc.specification import Specification, run_facts


def train(
    federation: Federation | Shelf,
    model: nn.Module,
    algorithm: str | Algorithm = "fishr-inter-geo",
    *,
    rounds: int,
    learning_rate: float,
    weight_decay: float = 0.0,
    penalty_weight: float = 1.0,
    environment_size: int | None = None,
    weights: str | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    runtime: Runtime | None = None,
    callbacks: Sequence[Callback | Callable[[Record], None]] = (),
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> Result:
    """Train a copy of `model` over the silos of `federation`; the model passed in stays as it is.

    Args:
        federation: the silos, and the test set of a domain that none of them has seen; or a
            `fedilc.data.shelf.Shelf`, whose silos are opened one at a time. Where there are several ranks,
            a shelf keeps only those of its own rank.
        model: any module from inputs to logits.
        algorithm: a name from `fedilc.algorithms`, or an `Algorithm` of one's own.
        rounds: how many steps the server takes.
        learning_rate: of the server's optimiser, which the algorithm names (Adam for the paper's; a rate of 1
            with "sgd" takes the silos' updates as they are, as FedAvg does).
        weight_decay: of the server's optimiser (Adam's is its L2 form).
        penalty_weight: lambda, the weight of the penalty that the algorithm has.
        environment_size: examples in each environment inside a silo: 1, k, or None for the whole
            silo; only algorithms with an `intra` aggregation use it.
        weights: how much each silo counts in a mean across silos; None is as the algorithm has it. "equal" is
            as in the paper: a silo of 6 examples counts as much as one of 2,000. "examples" is n_e/n over the
            silos that answer, for updates and train loss; the penalty and the validation means count silos
            equally. "group-dro" and "afl" (with `weights_step`) and "q-ffl" (with `weights_power`) follow the
            silos' losses. All but "equal" are refused for a geometric mean across silos, in which each silo
            is one vote and one factor, whatever its size.
        seed: every random choice of the run derives from it.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", ...
        runtime: how requests reach the silos; None is in this process.
        callbacks: observers (see `fedilc.callbacks`), or functions that are given each record.
        out: a folder for history, checkpoints and the best rounds' weights; None keeps all in memory.
        resume: go on from the last completed round in `out`.
        settings: further facts to record in `out`, which a resumed run must share.
        more: `penalty` (what silos match, in place of the algorithm's own); `local_steps` or `local_epochs`,
            `batch_size`, `local_learning_rate`, `local_optimizer`, `proximal` (local steps, in place of the
            algorithm's own); `optimizer`, `optimizer_options` (the server's); `learning_rate_schedule`
            ("constant", "step", "cosine"), `warmup_rounds`, `decay_rounds`, `decay_factor`; `silos_per_round`
            (how many silos are drawn for each round); `zeros` and `agreement` (of aggregations that take
            them), `covariance` ("diagonal", "full"), `fishr_reduction` ("mean", "sum": of any penalty over
            silos), `penalty_anneal_rounds` and `penalty_start`, `min_silos`, `evaluate_every`,
            `on_divergence` ("stop", "exclude": what follows a step that leaves weights or optimiser
            infinite), `outlier_factor` (answers whose norm is over this many times the median are set aside;
            0 is never), `max_norm` (to which each silo's answers are clipped),
            `classifier` (the name of the layer that gives the logits, for Fishr and CORAL),
            `thresholded_batch` (report the areas of thresholded predictions too, in batches of this many). A
            note names options that no part of the algorithm takes.

    >>> import torch
    >>> from fedilc import Federation, Silo
    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> silos = [Silo("a", x, x[:, 0] > 1), Silo("b", x + 0.5, x[:, 0] > 1)]
    >>> result = train(Federation("line", silos), nn.Linear(1, 1), rounds=3, learning_rate=0.1)
    >>> [record["round"] for record in result.history]
    [1, 2, 3]
    """
    named = {
        "rounds": rounds,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "penalty_weight": penalty_weight,
        "environment_size": environment_size,
        "weights": weights,
        "seed": seed,
        "device": str(device),
    }
    options = validated(Options, named | more)
    for given, kind in ((federation, Federation | Shelf), (model, nn.Module)):
        if not isinstance(given, kind):
            name = "Module" if kind is nn.Module else "Federation"
            raise ConfigError(f"train() was given {type(given).__name__} where a {name} is needed")
    if isinstance(callbacks, Callback) or callable(callbacks):
        callbacks = [callbacks]

    report = None
    if isinstance(federation, Shelf):
        shelf = federation
    else:
        report = check_federation(federation)
        report.require()
        shelf = Shelf.of(federation)
    spec = Specification.of(Outline.of(shelf), model, algorithm, options)
    shelf.check_classes(spec.outputs)
    if runtime is None:
        runtime = runtime_here(shelf, spec.model, spec.program, partial(measure, spec.bench.loss))
    if report is not None and runtime.leads:
        report.warn()
    return Training(spec, runtime).run(
        [as_callback(callback) for callback in callbacks], out, resume, settings or {}
    )


class Training:
    """A run put together: a specification, the runtime that reaches its silos, and the server over it."""

    def __init__(self, spec: Specification, runtime: Runtime) -> None:
        self.spec, self.runtime = spec, runtime
        self.outline, self.options, self.model = spec.outline, spec.options, spec.model
        if runtime.leads:
            spec.note()
        self.sizes_known = spec.sizes_known
        runtime.silos = runtime.silos or self.outline.silos
        self.server = make_server(self.model, runtime, spec.program, self.options)
        if self.outline.x_test is not None:
            self.server.test = self._test

    def _test(self) -> dict[str, float | None]:
        """Return the metrics of the out-of-distribution test set; of several processes, one measures them."""
        assert self.outline.x_test is not None
        assert self.outline.y_test is not None
        bench = self.spec.bench
        logits = self._test_logits(self.outline.x_test)
        if not self.runtime.leads:
            return {}
        y = bench.labels(self.outline.y_test)
        found = measure(bench.loss, logits, y)
        if self.options.thresholded_batch is not None and bench.loss.name == "binary":
            areas = thresholded_areas(logits, y, self.options.thresholded_batch)
            found |= {f"thresholded_{key}": area for key, area in areas.items()}
        return found

    def _test_logits(self, x: Tensor) -> Tensor:
        """Return what the model says of the test set; every process computes its part."""
        bench, mine = self.spec.bench, self.runtime.part_of(len(x))
        part = bench.predict(bench.inputs(x[mine]))
        if len(part) == len(x):
            return part
        logits = part.new_zeros(len(x), self.spec.outputs)
        logits[mine] = part
        self.runtime.join_parts(logits)
        return logits

    def run(
        self,
        callbacks: list[Callback],
        out: str | os.PathLike[str] | None,
        resume: bool,
        settings: dict[str, Any],
    ) -> Result:
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
                self._open(folder, resume, settings, run)
            for callback in callbacks:
                callback.on_start(run)
            for number in range(self._begin(run) + 1, self.options.rounds + 1):
                if self.runtime.agree(run.stopped is not None):
                    break
                self._round(number, run, callbacks, folder)
            for callback in callbacks:
                callback.on_end(run)
        finally:
            if folder is not None:
                folder.release()
        for parameter in self.model.parameters():
            parameter.data = parameter.data.contiguous()
        kept = {
            callback.criterion: (callback.round, callback.weights)
            for callback in callbacks
            if isinstance(callback, KeepBest) and callback.round is not None
        }
        return Result(self.model.eval(), run.history, self.spec.name, run.stopped, kept)

    def _round(self, number: int, run: Run, callbacks: list[Callback], folder: RunFolder | None) -> None:
        started = time.perf_counter()
        due = number % self.options.evaluate_every == 0 or number in (1, self.options.rounds)
        record = flatten(self.server.round(number, evaluate=due))
        seconds = time.perf_counter() - started
        if not self.sizes_known and self.runtime.leads:
            self.sizes_known = "silos" in record
            self.spec.note_sizes(record.get("silos", {}))
        run.history.append(record)
        if "set_aside" in record and self.runtime.leads:
            warnings.warn(
                f"round {number} went on without {sentence(record['set_aside'])}", FedILCWarning, stacklevel=2
            )
        for callback in callbacks:
            callback.on_round(run, record)
        if folder is not None:
            folder.save(record, seconds, self.server.tensors(), self.server.facts(), run.stopped)

    def _begin(self, run: Run) -> int:
        """Return after which round to go on; of several processes, all go on from the leading one's state."""
        server = self.server
        facts: dict[str, Any] = {
            "done": len(run.history),
            "recent": server.bound.recent,
            "set_aside": server.bound.set_aside,
            "server": server.facts(),
            "out": None if run.out is None else str(run.out),
        }
        tensors, facts = self.runtime.follow(server.tensors(), facts)
        if not self.runtime.leads:
            server.restore(tensors, facts["server"], facts["done"])
            server.bound.recent, server.bound.set_aside = facts["recent"], facts["set_aside"]
        if facts["out"] is not None:
            self.runtime.keep_states(Path(facts["out"]) / SILO_STATES)
        return int(facts["done"])

    def _open(self, folder: RunFolder, resume: bool, settings: dict[str, Any], run: Run) -> None:
        facts = run_facts(self.spec)
        facts |= settings | {"model": settings.get("model", {}) | facts["model"]}
        if not resume:
            folder.create(facts)
            return
        saved = folder.resume(facts)
        if saved is not None:
            self.server.restore(saved.tensors, saved.facts, saved.round)
            self.server.bound.restore(saved.history)
            run.history, run.stopped = saved.history, saved.stopped


def _keepers(callbacks: Sequence[Callback]) -> list[Callback]:
    """What keeps the best rounds' weights, unless the caller has brought it."""
    brought = {callback.criterion for callback in callbacks if isinstance(callback, KeepBest)}
    return [KeepBest(criterion) for criterion in ("validation", "oracle") if criterion not in brought]
