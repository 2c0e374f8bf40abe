"""`train`: one call from a federation and a model to a trained copy and its history."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from fedilc.algorithms import Algorithm
from fedilc.config import Options
from fedilc.data import Federation
from fedilc.data.checks.federation import check_federation
from fedilc.data.silo_store import SiloStore
from fedilc.data.sources import validated
from fedilc.errors import WrongTypeError
from fedilc.evaluation import measure
from fedilc.federation import Record
from fedilc.runtimes.base import Runtime
from fedilc.runtimes.distributed import runtime_here
from fedilc.training.callbacks import Callback, as_callback
from fedilc.training.loop import Specification, Training
from fedilc.training.result import Result


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
    silo_weights: str | Mapping[str, float] | None = None,
    balance: str | None = None,
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
            `fedilc.data.silo_store.SiloStore`, which opens its silos one at a time. With several ranks, it
            keeps only those of its own rank.
        model: any module from inputs to logits.
        algorithm: a name from `fedilc.algorithms`, or an `Algorithm` of your own.
        rounds: how many steps the server takes.
        learning_rate: of the server's optimiser, which the algorithm names (Adam for the paper's; a rate of 1
            with "sgd" takes the silos' updates as they are, as FedAvg does).
        weight_decay: of the server's optimiser (Adam's is its L2 form).
        penalty_weight: lambda, the weight of the algorithm's penalty.
        environment_size: examples per environment inside a silo: 1, k, or None for the whole
            silo; only algorithms with an `intra` aggregation use it.
        silo_weights: how much each silo counts in a mean across silos; None is the algorithm's own choice.
            "equal" is the paper's: a silo of 6 examples counts as much as one of 2,000. "examples" is n_e/n
            over the silos that answer, for updates and train loss; the penalty and the validation means count
            silos equally. "group-dro" and "afl" (with `weights_step`) and "q-ffl" (with `weights_power`)
            follow the silos' losses. {"a": 2.0, "b": 1.0} gives each silo a weight. A geometric mean across
            silos refuses all but "equal": in it each silo is one vote and one factor, whatever its size.
        balance: "weights" lets the classes of each silo count equally in its loss (an example of class c of K
            counts n/(K n_c)), "oversample" repeats examples of the rarer ones at random until all are as
            frequent; None or "none" takes examples as they are. Validation and test stay as they are.
        seed: every random choice of the run derives from it.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", ...
        runtime: how requests reach the silos; None is in this process.
        callbacks: observers (see `fedilc.Callback`), or functions that are given each record.
        out: a folder for history, checkpoints and the best rounds' weights; None keeps all in memory.
        resume: continue after the last completed round in `out`.
        settings: further facts to record in `out`; a resumed run must have the same.
        more: the options below, and those that parts declare, such as a penalty of your own (see
            `fedilc list NAME`). A note names options that no part of the algorithm takes.

    The loss:
        loss: a loss by name for the same labels as the data's own, such as one that you registered
            (`fedilc.gradients.losses.register`); None is that of the data.

    What silos match:
        penalty: a penalty in place of the algorithm's own, by name.
        covariance: of Fishr, "diagonal" or "full".
        reduction: "mean" or "sum" of a penalty over silos; `fishr_reduction` is the same.
        penalty_anneal_rounds, penalty_start: lambda is `penalty_start` in the first rounds.
        classifier: the name of the layer that gives the logits, for Fishr and CORAL.

    Local steps, in place of the algorithm's own:
        local_steps, local_epochs: how many per round; give one of the two.
        batch_size, local_learning_rate, local_optimizer, local_momentum: of each local step;
            batch_size="all" takes all examples of the silo, and None as many as the algorithm says (32 in
            fedavg).
        proximal: mu of FedProx.

    The server's step:
        optimizer, optimizer_options: any torch optimiser by its name in lower case (but not LBFGS, SparseAdam
            and Muon, which need more than dense gradients), "fedadam" or "yogi"; and its options.
        learning_rate_schedule: "constant", "step" (with `decay_rounds`, `decay_factor`) or "cosine".
        warmup_rounds: first rounds, in which the rate rises.
        inter: how silos' updates become one, in place of the algorithm's own: "mean", "geometric",
            "and-mask", "absolute-geometric", "trimmed-mean" or "median"; the last two keep all replies.
        zeros, agreement, min_side: of aggregations that take them; see `weighted_geometric_mean`.
        trim: the share of silos that "trimmed-mean" drops at each end of each coordinate; None is 0.2.

    Silos and rounds:
        silos_per_round: how many silos are drawn for each round; None is all.
        min_silos: how many silos a round needs; None is all that were asked.
        evaluate_every: rounds between evaluations.
        on_divergence: "stop", or "exclude" silos that stand out, after a step that leaves weights infinite.
        outlier_factor: warn of answers whose norm is over this many times the median, or, over a network,
            leave them out; 0 is never.
        max_norm: clip each silo's answers to this norm.
        metrics: names of metrics of your own to measure too (`fedilc.evaluation.metrics.register`).
        thresholded_batch: report the areas of thresholded predictions too, in batches of this size.

    Returns:
        The trained copy, its history, and the weights of the rounds that criteria choose.

    Raises:
        ConfigError: if a setting cannot be used.
        DataError: if silos or the test set cannot be used as they are.
        ModelError: if the network cannot be trained by this algorithm.
        CheckpointError: if `out` holds a run already, or cannot be resumed: it is damaged, or of other
            settings or data.
        SilosLostError: if fewer silos than `min_silos` are left.
        DivergedError: if a step makes weights infinite; it is undone first.

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
        "silo_weights": silo_weights,
        "balance": balance,
        "seed": seed,
        "device": str(device),
    }
    options = validated(Options, {**named, **more})
    for given, kind in ((federation, Federation | SiloStore), (model, nn.Module)):
        if not isinstance(given, kind):
            name = "Module" if kind is nn.Module else "Federation"
            raise WrongTypeError(f"train() needs a {name}, and was given {type(given).__name__}")
    if isinstance(callbacks, Callback) or callable(callbacks):
        callbacks = [callbacks]

    report = None
    if isinstance(federation, SiloStore):
        store = federation
    else:
        report = check_federation(federation)
        report.require()
        store = SiloStore.of(federation)
    spec = Specification.of(store.outline(), model, algorithm, options)
    store.check_classes(spec.outputs)
    if runtime is None:
        runtime = runtime_here(
            store, spec.runner, spec.program, partial(measure, spec.runner.loss, metrics=options.metrics)
        )
    if report is not None and runtime.leads:
        report.warn()
    return Training(spec, runtime).run(
        [as_callback(callback) for callback in callbacks], out, resume, settings or {}
    )
