"""`train`: one call from a federation and a model to a trained copy and its history."""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedilc.algorithms import Algorithm, find_algorithm, with_weights
from fedilc.assembly import Outline, find_device, make_server, make_task, run_facts
from fedilc.callbacks import Callback, KeepBest, Run, as_callback, refuse_key
from fedilc.config import Options
from fedilc.data import Federation
from fedilc.data.checks import check_federation
from fedilc.data.shelf import Shelf
from fedilc.errors import ConfigError, FedILCError, FedILCWarning, ModelError
from fedilc.evaluation import measure, thresholded_areas
from fedilc.federation import Record, RunFolder, Runtime, Task
from fedilc.federation.checkpoint import Saved
from fedilc.federation.optimizer_state import blank_optimizer, optimizer_tensors, restore_optimizer
from fedilc.federation.outliers import sentence
from fedilc.gradients import Loss, Workbench, logits_layer, require_logits, require_supported, variance_like
from fedilc.models import input_hint
from fedilc.notes import note_settings, note_sizes
from fedilc.records import flatten
from fedilc.result import Result
from fedilc.runtimes.distributed import DistributedRuntime, Group
from fedilc.runtimes.local import LocalRuntime
from fedilc.sections import validated


def train(
    federation: Federation | Shelf,
    model: nn.Module,
    algorithm: str | Algorithm = "fishr-inter-geo",
    *,
    rounds: int,
    learning_rate: float,
    weight_decay: float = 0.0,
    penalty: float = 1.0,
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
        learning_rate: of `torch.optim.Adam`.
        weight_decay: of `torch.optim.Adam` (its L2 form).
        penalty: lambda, the weight of the Fishr penalty.
        environment_size: examples in each environment inside a silo: 1, k, or None for the whole
            silo; only algorithms with an `intra` aggregation use it.
        weights: how much each silo counts in a mean across silos, which fedsgd, fedcurv and the fishr-intra-*
            take: "equal" (the default, as in the paper: a silo of 6 examples counts as much as one of
            2,000) or "examples" (n_e/n over the silos that answer, for gradients and train loss; the
            penalty and the validation means count silos equally). Refused for a geometric mean across
            silos, in which each silo is one vote and one factor, whatever its size.
        seed: every random choice of the run derives from it.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", ...
        runtime: how requests reach the silos; None is in this process.
        callbacks: observers (see `fedilc.callbacks`), or functions that are given each record.
        out: a folder for history, checkpoints and the best rounds' weights; None keeps all in memory.
        resume: go on from the last completed round in `out`.
        settings: further facts to record in `out`, which a resumed run must share.
        more: `zeros` and `agreement` (of aggregations that take them, otherwise a note says that they change
            nothing), `covariance` ("diagonal", "full"), `fishr_reduction` ("mean",
            "sum"), `penalty_anneal_rounds` and `penalty_start`, `min_silos`, `evaluate_every`,
            `on_divergence` ("stop", "exclude": what follows a step that leaves weights or optimiser
            infinite), `outlier_factor` (answers whose norm is over this many times the median are set aside;
            0 is never), `max_norm` (to which each silo's gradient is clipped),
            `classifier` (the name of the layer whose variances Fishr matches), `thresholded_batch`
            (report the areas of thresholded predictions too, in batches of this many).

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
        "penalty": penalty,
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

    if isinstance(federation, Shelf):
        shelf = federation
    else:
        report = check_federation(federation)
        report.require()
        if Group.current().first:
            report.warn()
        shelf = Shelf.of(federation)

    def connect(task: Task, model: nn.Module, outputs: int) -> Runtime:
        shelf.check_classes(outputs)
        if runtime is not None:
            return runtime
        local = LocalRuntime(shelf, model, task, partial(measure, Loss(task.loss)))
        group = Group.current()
        return DistributedRuntime(group, local) if group.size > 1 else local

    return Training(Outline.of(shelf), model, algorithm, options, connect).run(
        [as_callback(callback) for callback in callbacks], out, resume, settings or {}
    )


class Training:
    """A run put together: server, runtime, evaluation and folder.

    `connect` makes the runtime, once it is known what silos must be told, what the model is, and how
    many logits it gives.
    """

    def __init__(
        self,
        outline: Outline,
        model: nn.Module,
        algorithm: str | Algorithm,
        options: Options,
        connect: Callable[[Task, nn.Module, int], Runtime],
    ) -> None:
        self.outline = outline
        self.options = options
        self.group = Group.current()
        self.name, found = find_algorithm(algorithm)
        self.algorithm = with_weights(found, options.weights)
        self.model = copy.deepcopy(model).to(find_device(options.device))
        self.loss = Loss(outline.loss)
        task = make_task(self.algorithm, outline.loss, options)
        if self.group.first:
            note_settings(self.name, self.algorithm, options)
        self.sizes_known = self._note_sizes(outline.facts)
        votes = task.intra is not None and options.environment_size is not None
        require_supported(self.model, environments=votes)
        self.bench = Workbench(self.model, self.loss)
        sample, self.outputs = self._try_model()
        require_logits(self.model, sample)
        if self.algorithm.two_phase:
            classifier = logits_layer(self.model, self.loss, sample, options.classifier)
            task = replace(task, classifier=classifier)
        runtime = connect(task, self.model, self.outputs)
        names = getattr(runtime, "silos", None) or outline.silos
        self.server = make_server(self.model, runtime, names, self.algorithm, options)
        if task.classifier is not None:
            self.server.variance_like = variance_like(self.model, task.classifier, task.covariance)
        if outline.x_test is not None:
            self.server.test = self._test

    def _note_sizes(self, silos: Mapping[str, Mapping[str, Any]]) -> bool:
        """Say that silos count equally if they are unlike; whether their sizes are known."""
        sizes = {silo: int(found["examples"]) for silo, found in silos.items() if "examples" in found}
        if self.group.first:
            note_sizes(self.algorithm, sizes)
        return bool(sizes)

    def _try_model(self) -> tuple[Tensor, int]:
        """Run the model on two examples, so that what cannot work is said before the first round."""
        sample = self.bench.inputs(self.outline.sample)
        before = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        try:
            self.bench.example_bytes(sample)
            logits = self.bench.predict(sample)
        except FedILCError:
            raise
        except Exception as error:  # whatever a network of one's own raises
            raise ConfigError(
                f"the model cannot take inputs of shape {tuple(sample.shape[1:])} and type {sample.dtype}: "
                f"{input_hint(sample, error)}"
            ) from error
        if len(logits) != len(sample):
            raise ModelError(
                f"the model gives {len(logits)} outputs for {len(sample)} examples; it must give one each"
            )
        for name, buffer in self.model.named_buffers():
            if not torch.equal(buffer, before[name]):
                raise ModelError(
                    f"the buffer {name!r} changes in the forward pass, and what silos see does not travel; "
                    "use a layer without running statistics"
                )
        return sample, logits.shape[1]

    def _test(self) -> dict[str, float | None]:
        """The metrics of the out-of-distribution test set; only the first rank measures them."""
        assert self.outline.x_test is not None
        assert self.outline.y_test is not None
        logits = self._test_logits(self.outline.x_test)
        if not self.group.first:
            return {}
        y = self.bench.labels(self.outline.y_test)
        found = measure(self.loss, logits, y)
        if self.options.thresholded_batch is not None and self.loss.name == "binary":
            areas = thresholded_areas(logits, y, self.options.thresholded_batch)
            found |= {f"thresholded_{key}": area for key, area in areas.items()}
        return found

    def _test_logits(self, x: Tensor) -> Tensor:
        """What the model says of the test set; every rank computes its part, and the parts are added."""
        if not 1 < self.group.size <= len(x):
            return self.bench.predict(self.bench.inputs(x))
        mine = slice(*(len(x) * rank // self.group.size for rank in (self.group.rank, self.group.rank + 1)))
        part = self.bench.predict(self.bench.inputs(x[mine]))
        logits = part.new_zeros(len(x), self.outputs)
        logits[mine] = part
        self.group.add(logits)
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
        folder = RunFolder(out) if out is not None and self.group.first else None
        callbacks = [*_keepers(callbacks), *callbacks] if self.group.first else []
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
                if self._stopped(run):
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
        return Result(self.model.eval(), run.history, self.name, run.stopped, kept)

    def _round(self, number: int, run: Run, callbacks: list[Callback], folder: RunFolder | None) -> None:
        started = time.perf_counter()
        due = number % self.options.evaluate_every == 0 or number in (1, self.options.rounds)
        record = flatten(self.server.round(number, evaluate=due))
        seconds = time.perf_counter() - started
        self.sizes_known = self.sizes_known or self._note_sizes(record.get("silos", {}))
        run.history.append(record)
        if "set_aside" in record and self.group.first:
            warnings.warn(
                f"round {number} went on without {sentence(record['set_aside'])}", FedILCWarning, stacklevel=2
            )
        for callback in callbacks:
            callback.on_round(run, record)
        if folder is not None:
            optimizer = optimizer_tensors(self.server.optimizer)
            folder.save(record, seconds, self.server.weights, optimizer, run.stopped)

    def _begin(self, run: Run) -> int:
        """After which round to go on; where there are several ranks, all from the first one's state."""
        if self.group.size == 1:
            return len(run.history)
        done = torch.tensor([len(run.history)])
        self.group.send_from_first(done)
        for weights in self.server.weights.values():
            self.group.send_from_first(weights)
        if int(done):
            self.server.bound.recent = self.group.gather(self.server.bound.recent)[0]
            self.server.bound.set_aside = self.group.gather(self.server.bound.set_aside)[0]
            state = optimizer_tensors(self.server.optimizer) or blank_optimizer(self.server.optimizer)
            for key in sorted(state):
                self.group.send_from_first(state[key])
            restore_optimizer(self.server.optimizer, state)
            self.server.version = int(done)
        return int(done)

    def _stopped(self, run: Run) -> bool:
        """Whether the first rank has a reason to stop."""
        if self.group.size == 1:
            return run.stopped is not None
        flag = torch.tensor([run.stopped is not None])
        self.group.send_from_first(flag)
        return bool(flag)

    def _open(self, folder: RunFolder, resume: bool, settings: dict[str, Any], run: Run) -> None:
        chosen = self.name, self.algorithm, self.options
        facts = run_facts(self.outline, self.model, self.outputs, *chosen)
        facts |= settings | {"model": settings.get("model", {}) | facts["model"]}
        if not resume:
            folder.create(facts)
            return
        saved = folder.resume(facts)
        if saved is not None:
            self._restore(saved)
            run.history, run.stopped = saved.history, saved.stopped

    def _restore(self, saved: Saved) -> None:
        with torch.no_grad():
            for name, parameter in self.bench.parameters.items():
                parameter.copy_(saved.weights[name])
        restore_optimizer(self.server.optimizer, saved.optimizer)
        self.server.bound.restore(saved.history)
        self.server.version = saved.round


def _keepers(callbacks: Sequence[Callback]) -> list[Callback]:
    """What keeps the best rounds' weights, unless the caller has brought it."""
    brought = {callback.criterion for callback in callbacks if isinstance(callback, KeepBest)}
    return [KeepBest(criterion) for criterion in ("validation", "oracle") if criterion not in brought]
