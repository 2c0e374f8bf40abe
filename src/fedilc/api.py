"""`train`: one call from a federation and a model to a trained copy and its history."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from fedilc.algorithms import Algorithm
from fedilc.config import Options
from fedilc.config.section import validated
from fedilc.data import Federation
from fedilc.data.checks import check_federation
from fedilc.data.outline import Outline
from fedilc.data.silo_store import SiloStore
from fedilc.errors import ConfigError
from fedilc.evaluation import measure
from fedilc.federation import Record, Runtime
from fedilc.runtimes.distributed import runtime_here
from fedilc.training.callbacks import Callback, as_callback
from fedilc.training.loop import Training
from fedilc.training.result import Result
from fedilc.training.specification import Specification


def train(
    federation: Federation | SiloStore,
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
            `fedilc.data.silo_store.SiloStore`, whose silos are opened one at a time. With several ranks, it
            keeps only those of its own rank.
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
        callbacks: observers (see `fedilc.training.callbacks`), or functions that are given each record.
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
    for given, kind in ((federation, Federation | SiloStore), (model, nn.Module)):
        if not isinstance(given, kind):
            name = "Module" if kind is nn.Module else "Federation"
            raise ConfigError(f"train() was given {type(given).__name__} where a {name} is needed")
    if isinstance(callbacks, Callback) or callable(callbacks):
        callbacks = [callbacks]

    report = None
    if isinstance(federation, SiloStore):
        store = federation
    else:
        report = check_federation(federation)
        report.require()
        store = SiloStore.of(federation)
    spec = Specification.of(Outline.of(store), model, algorithm, options)
    store.check_classes(spec.outputs)
    if runtime is None:
        runtime = runtime_here(store, spec.model, spec.program, partial(measure, spec.bench.loss))
    if report is not None and runtime.leads:
        report.warn()
    return Training(spec, runtime).run(
        [as_callback(callback) for callback in callbacks], out, resume, settings or {}
    )
