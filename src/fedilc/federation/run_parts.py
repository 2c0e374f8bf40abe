"""The parts of a run that server and silos share, built from its algorithm and its settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fedilc.aggregation import Aggregator, Mean, aggregator_options, build_aggregator
from fedilc.algorithms import Algorithm
from fedilc.algorithms.loss_name import LossName, has_classes
from fedilc.config import Options
from fedilc.config.options import Balance
from fedilc.errors import ConfigError
from fedilc.penalties import Penalty, build_penalty, penalty_options

Reduction = Literal["mean", "sum"]
_AGGREGATION = ("zeros", "agreement", "min_side")


@dataclass(frozen=True)
class RunParts:
    """The algorithm's parts as objects, and the settings of a silo's computation.

    `intra` is the aggregator of environments, None if the silo is one environment. `reduction`
    says whether the penalty is the mean over silos (the paper) or their sum (the authors' code). `max_norm`
    is the norm to which updates are clipped. `balance` says how a silo's classes are balanced, if at all.
    """

    algorithm: Algorithm
    loss: LossName
    intra: Aggregator | None = None
    inter: Aggregator = field(default_factory=Mean)
    penalty: Penalty | None = None
    environment_size: int | None = None
    reduction: Reduction = "mean"
    classifier: str | None = None
    seed: int = 0
    max_norm: float | None = None
    balance: Balance | None = None


def make_parts(algorithm: Algorithm, loss: LossName, options: Options) -> RunParts:
    """Return the parts of a run with these settings."""
    if options.balance is not None and not has_classes(loss):
        raise ConfigError(
            f"balance={options.balance!r} balances classes, and loss={loss!r} has no classes; "
            "leave balance out"
        )
    whole = algorithm.intra is None or algorithm.intra == "whole"
    penalty = None
    if algorithm.penalty is not None:
        known = penalty_options(algorithm.penalty)
        penalty = build_penalty(algorithm.penalty, **{key: getattr(options, key) for key in known})
    return RunParts(
        algorithm=algorithm,
        loss=loss,
        intra=None if whole or algorithm.intra is None else _aggregator(options, algorithm.intra),
        inter=_aggregator(options, algorithm.inter),
        penalty=penalty,
        environment_size=options.environment_size,
        reduction=options.fishr_reduction,
        classifier=options.classifier,
        seed=options.seed,
        max_norm=options.max_norm,
        balance=options.balance,
    )


def _aggregator(options: Options, choice: str | Aggregator) -> Aggregator:
    """Return an aggregator with those of the run's options that it takes."""
    known = aggregator_options(choice)
    return build_aggregator(
        choice, **{key: v for key, v in _given(options, *_AGGREGATION).items() if key in known}
    )


def _given(options: Options, *names: str) -> dict[str, Any]:
    """Return those of the named options that differ from their defaults."""
    defaults = {key: Options.model_fields[key].default for key in names}
    return {key: getattr(options, key) for key, value in defaults.items() if getattr(options, key) != value}


def unused_options(algorithm: Algorithm, options: Options) -> dict[str, Any]:
    """Return options that were given but that no part of the algorithm uses.

    >>> from fedilc import algorithms
    >>> unused_options(algorithms.get("fedsgd"), Options(rounds=1, learning_rate=0.1, agreement=0.5))
    {'agreement': 0.5}
    """
    levels = (algorithm.inter, "mean" if algorithm.intra in (None, "whole") else algorithm.intra)
    known = {key for level in levels if level is not None for key in aggregator_options(level)}
    unused = {key: value for key, value in _given(options, *_AGGREGATION).items() if key not in known}
    if algorithm.penalty is None or "covariance" not in penalty_options(algorithm.penalty):
        unused |= _given(options, "covariance")
    if algorithm.local is None:
        unused |= _given(options, "batch_size", "local_learning_rate", "local_optimizer", "proximal")
    if algorithm.weights not in ("group-dro", "afl"):
        unused |= _given(options, "weights_step")
    if algorithm.weights != "q-ffl":
        unused |= _given(options, "weights_power")
    if options.learning_rate_schedule != "step":
        unused |= _given(options, "decay_rounds", "decay_factor")
    return unused
