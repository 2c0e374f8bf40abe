"""`train`: one call that turns a federation and a model into a trained copy and its history."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from fedilc.algorithms import Algorithm, find_algorithm
from fedilc.config import Options
from fedilc.data import Federation
from fedilc.data.checks.federation import check_federation
from fedilc.data.silo_store import SiloStore
from fedilc.errors import ConfigError, DivergedError, NonFiniteError, WrongTypeError
from fedilc.evaluation import measure
from fedilc.federation import Record
from fedilc.runtimes.base import Runtime
from fedilc.runtimes.distributed import runtime_here
from fedilc.section import validated
from fedilc.training.callbacks import Callback, Run, as_callback
from fedilc.training.loop import Specification, Training
from fedilc.training.result import Result
from fedilc.training.stack import Moment, StackedRun, Trained, Watch, stack_key, stacks, train_stack


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
    """Train a copy of `model` over the silos of `federation`; the model passed in is not changed.

    Args:
        federation: silos, and the test set of a domain that none of them has seen; or a
            `fedilc.data.silo_store.SiloStore`, which opens its silos one at a time. With several ranks, each
            rank keeps only its own silos.
        model: any module from inputs to logits.
        algorithm: name from `fedilc.algorithms`, or an `Algorithm` of your own.
        rounds: number of rounds, in each of which the server takes one step.
        learning_rate: server learning rate, for the optimiser of the algorithm (Adam for the paper's
            algorithms; with "sgd", a rate of 1 applies the silos' updates as they are, as FedAvg does).
        weight_decay: weight decay of the server's optimiser (Adam's is its L2 form).
        penalty_weight: lambda, the weight of the algorithm's penalty.
        environment_size: examples per environment inside a silo: 1, k, or None for the whole
            silo; only algorithms with an `intra` aggregation use it.
        silo_weights: silo weighting in a mean across silos: a rule name or one number per silo; None is the
            algorithm's own. "equal" is the paper's: a silo with 6 examples counts as much as one with 2,000.
            "examples" is n_e/n over the silos that answer, for updates and train loss; the penalty and the
            validation means still count silos equally. "group-dro" and "afl" (with `weights_step`) and
            "q-ffl" (with `weights_power`) follow the silos' losses. {"a": 2.0, "b": 1.0} gives each silo a
            weight. A geometric mean across silos refuses all rules but "equal": each silo is one vote and one
            factor, whatever its size.
        balance: how to balance classes within a silo. "weights" gives all classes the same weight in the loss
            (an example of class c of K counts n/(K n_c)), "oversample" repeats random examples of the rarer
            classes until all are equally frequent; None or "none" uses examples as they are. Validation and
            test sets are never balanced.
        seed: seed from which every random choice of the run derives.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", ...
        runtime: how requests reach the silos; None runs them in this process.
        callbacks: observers (see `fedilc.Callback`), or functions that are called with each record.
        out: folder for history, checkpoints and the best rounds' weights; None keeps all in memory.
        resume: whether to continue after the last completed round in `out`.
        settings: further facts to record in `out`; a resumed run must have the same.
        more: the options below, and those that parts declare, such as a penalty of your own (see
            `fedilc list NAME`). A note names options that no part of the algorithm takes.

    Loss:
        loss: loss by name for the same labels as the data's own loss, such as one that you registered
            (`fedilc.gradients.losses.register`); None is the loss of the data.

    Penalty options:
        penalty: penalty by name, in place of the algorithm's own.
        covariance: covariance that Fishr matches, "diagonal" or "full".
        reduction: "mean" or "sum" of the penalty over silos; `fishr_reduction` is the same option.
        penalty_anneal_rounds, penalty_start: number of first rounds, and lambda in these rounds.
        classifier: name of the layer that gives the logits, for Fishr and CORAL.

    Local steps instead of those of the algorithm:
        local_steps, local_epochs: number of steps or epochs per round; give one of the two.
        batch_size: examples per local step; "all" is all examples of the silo, and None as many as the
            algorithm says (32 in fedavg).
        local_optimizer, local_learning_rate, local_momentum: optimiser, learning rate and momentum for local
            steps.
        proximal: mu of FedProx.

    Server options:
        optimizer, optimizer_options: any torch optimiser by its name in lower case (except LBFGS, SparseAdam
            and Muon, which need more than dense gradients), "fedadam", "yogi" or "layeradam"; and its
            options.
        learning_rate_schedule: "constant", "step" (with `decay_rounds`, `decay_factor`) or "cosine".
        warmup_rounds: number of first rounds, in which the learning rate rises.
        sum_unit: power of two, such as "2^-40", to whose multiples silos round what is added up; None is
            exact.
        sum_limit: magnitude to which silos clip each rounded number; None is 4096.
        secure: whether silos hide their answers in secure sums; for `fedilc serve` alone, None is no.
        average: "ema" or "last" for an average of the weights over rounds, which is evaluated, saved and
            returned in place of the last weights; None is none.
        average_decay: decay per round of "ema"; None is 0.95.
        average_share: share of the rounds that "last" averages; None is 0.25.
        inter: aggregation across silos, in place of the algorithm's own: "mean", "geometric", "and-mask",
            "absolute-geometric", "trimmed-mean" or "median"; the last two keep all replies in memory.
        zeros, agreement, min_side: options of aggregations by sign; see `weighted_geometric_mean`.
        trim: share of silos that "trimmed-mean" drops at each end of each coordinate; None is 0.2.

    Silos and rounds:
        silos_per_round: number of silos drawn for each round; None is all.
        min_silos: fewest silos that a round needs; None is all that were asked.
        evaluate_every: rounds between two evaluations.
        on_divergence: what to do if a step makes weights infinite: "stop", or "exclude" silos that stand out
            and repeat the round.
        outlier_factor: multiple of the median norm above which an answer is left out (over a network) or
            warned about (in one process); 0 is never.
        max_norm: norm to which each silo's answers are clipped.
        metrics: names of registered metrics to measure too (`fedilc.evaluation.metrics.register`).
        thresholded_batch: batch size in which areas of thresholded predictions are reported too.

    Returns:
        The trained copy, its history, and the weights of the rounds that criteria choose.

    Raises:
        ConfigError: if a setting cannot be used.
        DataError: if silos or the test set cannot be used as they are.
        ModelError: if the network cannot be trained by this algorithm.
        CheckpointError: if `out` already holds a run, or cannot be resumed because it is damaged or has
            other settings or data.
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
            raise WrongTypeError(f"train() needs a {name}, but was given {type(given).__name__}")
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


def train_many(runs: Sequence[StackedRun], watch: Watch | None = None) -> list[Trained]:
    """Train many runs, those of one `stack_key` in lockstep and the others one after the other.

    Which runs are stacked depends on the runs that are given here, and on nothing else.

    Args:
        runs: what `train` would be given, one by one.
        watch: called after every round with the models that took part in it.

    Returns:
        The results in the order of the runs; a run that diverged says why, and does not end the others.

    >>> from fedilc import Federation, Silo
    >>> silos = [Silo(name, [[0.0], [1.0], [2.0]], [0, 0, 1]) for name in "ab"]
    >>> federation, model = Federation("line", silos), nn.Linear(1, 1)
    >>> settings = [{"rounds": 2, "learning_rate": rate} for rate in (0.01, 0.1)]
    >>> found = train_many([StackedRun(federation, model, "fedsgd", given) for given in settings])
    >>> [len(one.history) for one in found]
    [2, 2]
    """
    results: dict[int, Trained] = {}
    for places in stacks(runs):
        members, own = [runs[place] for place in places], _renumbered(watch, places)
        alone = stack_key(members[0]) is None
        found = [train_alone(members[0], own)] if alone else train_stack(members, own)
        results |= dict(zip(places, found, strict=True))
    return [results[place] for place in range(len(runs))]


def _renumbered(watch: Watch | None, places: Sequence[int]) -> Watch | None:
    """Return a watch that is called with the places of a stack's runs among all runs."""
    if watch is None:
        return None
    own = {place: number for number, place in enumerate(places)}

    def renumbered(moment: Moment) -> None:
        def predict(asked: Sequence[int], inputs: Sequence[torch.Tensor]) -> torch.Tensor:
            return moment.predict([own[place] for place in asked], inputs)

        watch(Moment(moment.round, [places[number] for number in moment.places], predict))

    return renumbered


def train_alone(run: StackedRun, watch: Watch | None) -> Trained:
    """Train one run by `train`."""
    model = copy.deepcopy(run.model).eval()

    class Observer(Callback):
        def on_round(self, run: Run, record: Record) -> None:
            if watch is not None:
                watch(Moment(int(record["round"]), [0], partial(_outputs, model, run.weights)))

    try:
        result = train(run.federation, run.model, run.algorithm, callbacks=[Observer()], **run.settings)
    except (DivergedError, NonFiniteError) as error:
        return Trained(model, failed=str(error))
    except ConfigError as error:  # columns that depend on one another have no regression
        if not find_algorithm(run.algorithm)[1].is_newton:
            raise
        return Trained(model, failed=str(error))
    return Trained(result.model, result.history)


@torch.no_grad()
def _outputs(
    model: nn.Module,
    weights: Mapping[str, torch.Tensor],
    _places: Sequence[int],
    inputs: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Return the outputs of one model at these weights for each set of inputs: (sets, examples, outputs)."""
    dtype, found = next(iter(weights.values())).dtype, []
    for x in inputs:
        parts = [
            torch.func.functional_call(model, dict(weights), (part,)) for part in x.to(dtype).split(2048)
        ]
        found.append(torch.cat([part.reshape(len(part), -1) for part in parts]))
    return torch.stack(found)
