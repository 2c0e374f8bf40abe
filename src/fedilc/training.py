"""`train`: one call from a federation and a model to a trained copy and its history."""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedilc.aggregation import Aggregator, build_aggregator
from fedilc.algorithms import Algorithm, find_algorithm
from fedilc.callbacks import Callback, Run
from fedilc.config import Options, validated
from fedilc.data import Federation, LossName
from fedilc.errors import ConfigError, FedILCWarning
from fedilc.evaluation import fairness, measure, select
from fedilc.federation import Record, RunFolder, Runtime, Schedule, Server, Task
from fedilc.federation.checkpoint import Saved, optimizer_tensors, restore_optimizer
from fedilc.gradients import Loss, Workbench, require_supported
from fedilc.runtimes.local import LocalRuntime


@dataclass
class Result:
    """A trained model and how it came about.

    Attributes:
        model: the trained copy, at the last round.
        history: one record a round, as JSON-like dictionaries.
        algorithm: the algorithm's name.
        stopped: why the run ended early, or None.
    """

    model: nn.Module
    history: list[Record] = field(default_factory=list)
    algorithm: str = "custom"
    stopped: str | None = None

    def best(self, criterion: str = "validation") -> Record:
        """The record of the round that "oracle", "validation" or "last" chooses."""
        return dict(select(self.history, criterion))


def train(
    federation: Federation,
    model: nn.Module,
    algorithm: str | Algorithm = "fishr-inter-geo",
    *,
    rounds: int,
    learning_rate: float,
    weight_decay: float = 0.0,
    penalty: float = 1.0,
    environment_size: int | None = None,
    seed: int = 0,
    device: str = "auto",
    runtime: Runtime | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> Result:
    """Train a copy of `model` over the silos of `federation`; the model passed in stays as it is.

    Args:
        federation: the silos, and the test set of a domain that none of them has seen.
        model: any module from inputs to logits.
        algorithm: a name from `fedilc.algorithms`, or an `Algorithm` of one's own.
        rounds: how many steps the server takes.
        learning_rate: of `torch.optim.Adam`.
        weight_decay: of `torch.optim.Adam` (its L2 form).
        penalty: lambda, the weight of the Fishr penalty.
        environment_size: examples in each environment inside a silo: 1, k, or None for the whole
            silo; only algorithms with an `intra` aggregation use it.
        seed: every random choice of the run derives from it.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", ...
        runtime: how requests reach the silos; None is in this process.
        callbacks: observers; see `fedilc.callbacks`.
        out: a folder for history and checkpoints; None keeps everything in memory.
        resume: go on from the last completed round in `out`.
        settings: further facts to record in `out`, which a resumed run must share.
        more: `zeros`, `agreement`, `covariance` ("diagonal", "full"), `fishr_reduction` ("mean",
            "sum"), `penalty_anneal_rounds` and `penalty_start`, `min_silos`, `evaluate_every`,
            `classifier` (the name of the layer whose variances Fishr matches).

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
        "seed": seed,
        "device": device,
    }
    options = validated(Options, named | more)
    return _Training(federation, model, algorithm, options, runtime).run(
        list(callbacks), out, resume, settings or {}
    )


class _Training:
    """A run put together: server, runtime, evaluation and folder."""

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        algorithm: str | Algorithm,
        options: Options,
        runtime: Runtime | None,
    ) -> None:
        self.federation = federation
        self.options = options
        self.name, self.algorithm = find_algorithm(algorithm)
        self.model = copy.deepcopy(model).to(_device(options.device))
        self.loss = Loss(federation.loss)
        task = make_task(self.algorithm, federation.loss, options)
        require_supported(self.model, environments=_votes(task))
        if task.intra is not None and options.environment_size is None:
            warnings.warn(
                f"{self.name} works on environments inside a silo, but environment_size is None, "
                "so that each silo is one environment; set environment_size to 1 or to a batch size",
                FedILCWarning,
                stacklevel=3,
            )
        self.bench = Workbench(self.model, self.loss, options.classifier)
        self._check_output()
        self.runtime = runtime or LocalRuntime(federation, self.model, task, self._measure)
        names = getattr(self.runtime, "silos", None) or [silo.name for silo in federation.silos]
        self.server = make_server(self.model, self.runtime, names, self.algorithm, options)
        if federation.x_test is not None:
            self.server.test = self._test

    def _check_output(self) -> None:
        """Try the model on one example, so that a wrong shape is said before the first round."""
        sample = self.bench.inputs(self.federation.silos[0].x[:1])
        try:
            logits = self.bench.predict(sample)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ConfigError(
                f"the model cannot take inputs of shape {tuple(sample.shape[1:])} and type "
                f"{sample.dtype}: {str(error).splitlines()[0]}"
            ) from error
        self.federation.check_classes(logits.shape[1])

    def _measure(self, logits: Tensor, y: Tensor) -> dict[str, float | None]:
        return measure(self.loss, logits, y)

    def _test(self) -> dict[str, float | None]:
        assert self.federation.x_test is not None
        assert self.federation.y_test is not None
        logits = self.bench.predict(self.bench.inputs(self.federation.x_test))
        return self._measure(logits, self.bench.labels(self.federation.y_test))

    def run(
        self,
        callbacks: list[Callback],
        out: str | os.PathLike[str] | None,
        resume: bool,
        settings: dict[str, Any],
    ) -> Result:
        folder = RunFolder(out) if out is not None else None
        if resume and folder is None:
            raise ConfigError("resume=True needs out=..., the folder of the run to continue")
        run = Run(self.options.rounds, out=folder.path if folder else None)
        run.weights = self.server.weights
        if folder is not None:
            self._open(folder, resume, settings, run)
        for callback in callbacks:
            callback.on_start(run)
        for number in range(len(run.history) + 1, self.options.rounds + 1):
            if run.stopped:
                break
            self._round(number, run, callbacks, folder)
        for callback in callbacks:
            callback.on_end(run)
        return Result(self.model.eval(), run.history, self.name, run.stopped)

    def _round(self, number: int, run: Run, callbacks: list[Callback], folder: RunFolder | None) -> None:
        started = time.perf_counter()
        due = number % self.options.evaluate_every == 0 or number in (1, self.options.rounds)
        record = flatten(self.server.round(number, evaluate=due))
        seconds = time.perf_counter() - started
        run.history.append(record)
        for callback in callbacks:
            callback.on_round(run, record)
        if folder is not None:
            optimizer = optimizer_tensors(self.server.optimizer)
            folder.save(record, seconds, self.server.weights, optimizer, run.stopped)

    def _open(self, folder: RunFolder, resume: bool, settings: dict[str, Any], run: Run) -> None:
        facts = self._facts() | settings
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
        self.server.version = saved.round

    def _facts(self) -> dict[str, Any]:
        """What identifies the run, for the folder."""
        shapes = {name: list(p.shape) for name, p in self.bench.parameters.items()}
        return {
            "federation": self.federation.name,
            "silos": {silo.name: len(silo) for silo in self.federation.silos},
            "loss": self.federation.loss,
            "algorithm": self.name,
            "choices": self.algorithm.describe(),
            "parameters": shapes,
            **self.options.model_dump(),
        }


def flatten(record: Record) -> Record:
    """Bring the server's record into the shape of a history: means on top, silos and fairness below."""
    validation = record.pop("validation", {})
    test = record.pop("test", {})
    silos = record.pop("silos")
    flat = dict(record)
    for key in ("loss", "accuracy", "auroc", "auprc"):
        values = [numbers[key] for numbers in validation.values() if numbers[key] is not None]
        if values:
            flat[f"validation_{key}"] = sum(values) / len(values)
        if key in test:
            flat[f"test_{key}"] = test[key]
    if validation:
        flat["fairness"] = fairness({s: numbers["accuracy"] for s, numbers in validation.items()})
    for silo, numbers in validation.items():
        silos.setdefault(silo, {}).update({f"validation_{key}": value for key, value in numbers.items()})
    flat["silos"] = silos
    return flat


def make_task(algorithm: Algorithm, loss: LossName, options: Options) -> Task:
    """What silos must know of a run with these settings."""
    return Task(
        algorithm=algorithm,
        loss=loss,
        intra=None if algorithm.intra == "whole" else _aggregator(options, algorithm.intra),
        environment_size=options.environment_size,
        covariance=options.covariance,
        reduction=options.fishr_reduction,
        classifier=options.classifier,
        seed=options.seed,
    )


def make_server(
    model: nn.Module, runtime: Runtime, silos: Sequence[str], algorithm: Algorithm, options: Options
) -> Server:
    """A server that trains `model` itself, with these settings, over a runtime."""
    schedule = Schedule(options.penalty, options.penalty_anneal_rounds, options.penalty_start)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Server(
        model=model,
        optimizer=torch.optim.Adam(trainable, lr=options.learning_rate, weight_decay=options.weight_decay),
        runtime=runtime,
        silos=tuple(silos),
        inter=_aggregator(options, algorithm.inter),
        schedule=schedule if algorithm.two_phase else None,
        adds_up_in_silo=algorithm.adds_up_in_silo,
        reduction=options.fishr_reduction,
        min_silos=options.min_silos,
    )


def _aggregator(options: Options, choice: str | Aggregator) -> Aggregator:
    given = {"zeros": options.zeros, "agreement": options.agreement}
    return build_aggregator(choice, **{k: value for k, value in given.items() if value is not None})


def _votes(task: Task) -> bool:
    return task.intra is not None and task.environment_size is not None


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here: {reason}") from error
    return device
