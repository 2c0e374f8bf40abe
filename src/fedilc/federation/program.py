"""The parts of a run, and the program of a round: the steps that they need, declared for server and silos.

    statistics         each silo answers s_e, if it is compared with the silos' mean, which the server takes
    update             each silo answers its gradient, or w - w_e after local steps
    matched-update     the same with the penalty, given the mean of s_e and lambda
    evaluate           each silo evaluates the model on its validation set

A round without a penalty, or with lambda = 0, is `update`. With a penalty it is `statistics` and
`matched-update`, or `matched-update` alone if s_e is compared with 0 (IRM).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedilc.aggregation import Aggregator, Clipped, Mean, Sum, aggregator_options, build_aggregator
from fedilc.algorithms import Algorithm
from fedilc.algorithms.loss_name import LossName, has_classes
from fedilc.config import Options
from fedilc.errors import ConfigError
from fedilc.federation.steps import Answer, Like, Range, Step
from fedilc.federation.tensor_files import byte_size
from fedilc.penalties import Penalty, build_penalty, penalty_options

STATISTICS, UPDATE, MATCHED, EVALUATE = "statistics", "update", "matched-update", "evaluate"
PENALTY_WEIGHT = "penalty_weight"
PENALTY, CONTROL = "penalty", "control"
STATE_ROUND, STATE_SINCE = "state_round", "state_since"
MAX_NUMBER = 1e100
MAX_EXAMPLES = 2**53
MAX_ROUNDS = 2**31
_ONE = 1 + 1e-9  # with room for rounding
_FRACTION, _ANY = Range(0, _ONE), Range(-MAX_NUMBER, MAX_NUMBER)
_AREAS = {"accuracy": _FRACTION, "auroc": _FRACTION, "auprc": _FRACTION}
_CLASSIFICATION = {"loss": _ANY, **_AREAS, "examples": _ANY}
_REGRESSION = {"loss": _ANY, "rmse": _ANY, "mae": _ANY, "r2": Range(-MAX_NUMBER, _ONE), "examples": _ANY}
_AGGREGATION = ("zeros", "agreement", "min_side", "trim")


@dataclass(frozen=True)
class RunParts:
    """The algorithm's parts as objects, for server and silos.

    Args:
        algorithm: the choices that they are built from.
        loss: the name of the loss.
        options: the settings of the run.
        intra: the aggregator of environments; None if the silo is one environment.
        inter: the aggregator of silos.
        penalty: what silos match, if anything.
        classifier: the name of the layer that gives the logits, if a penalty needs it.
    """

    algorithm: Algorithm
    loss: LossName
    options: Options
    intra: Aggregator | None
    inter: Aggregator
    penalty: Penalty | None
    classifier: str | None


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
        unknown = [key for key in known if key not in Options.model_fields]
        if unknown:
            raise ConfigError(
                f"penalty {algorithm.penalty!r} takes {', '.join(unknown)}, and a run has no such option; "
                "give the algorithm the penalty as an object, with its arguments"
            )
        penalty = build_penalty(algorithm.penalty, **{key: getattr(options, key) for key in known})
    intra = None if whole or algorithm.intra is None else _aggregator(options, algorithm.intra)
    if intra is not None and intra.keeps_values:
        raise ConfigError(
            f"intra={algorithm.intra!r} would keep the gradient of every environment in memory; use it "
            "across silos, as inter"
        )
    return RunParts(
        algorithm,
        loss,
        options,
        intra=intra,
        inter=_aggregator(options, algorithm.inter),
        penalty=penalty,
        classifier=options.classifier,
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


def without_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of the same shapes and dtypes that hold no numbers."""
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Program:
    """The steps of a run.

    Args:
        parts: the algorithm's parts and the settings of silos.
        weights: w, as tensors without storage.
        statistic: s_e, as a tensor without storage; None if nothing is matched.
    """

    parts: RunParts
    weights: Like
    statistic: Tensor | None = None

    @classmethod
    def of(cls, parts: RunParts, model: nn.Module) -> Program:
        """Return the program for a model."""
        weights = without_storage({name: p for name, p in model.named_parameters() if p.requires_grad})
        like = None
        if parts.penalty is not None:
            like = parts.penalty.like(model, parts.classifier).to("meta")
        return cls(parts, weights, like)

    @cached_property
    def steps(self) -> dict[str, Step]:
        """Return all steps by name."""
        metrics = _CLASSIFICATION if has_classes(self.parts.loss) else _REGRESSION
        found = [self._update(UPDATE), Step(EVALUATE, metrics=metrics)]
        penalty = self.parts.penalty
        if penalty is not None:
            found.append(self._update(MATCHED))
        if penalty is not None and penalty.centred:
            found.append(Step(STATISTICS, answers={penalty.statistic: self._statistics}))
        return {step.name: step for step in found}

    def round(self, penalty_weight: float) -> tuple[Step, ...]:
        """Return the steps of a round with this lambda, without evaluation."""
        names = (STATISTICS, MATCHED) if penalty_weight else (UPDATE,)
        return tuple(self.steps[name] for name in names if name in self.steps)

    @property
    def answer_bytes(self) -> int:
        """Return the size of the tensors of the largest reply in bytes."""
        return max(
            sum(byte_size(answer.like.values()) for answer in step.answers.values())
            for step in self.steps.values()
        )

    @property
    def keeps_state(self) -> bool:
        """Return whether silos keep state from round to round."""
        local = self.parts.algorithm.local
        return local is not None and local.control_variates

    @property
    def update(self) -> str:
        """Return the name of a silo's update in messages and records."""
        return "gradient" if self.parts.algorithm.local is None else "update"

    @property
    def _statistics(self) -> Answer:
        assert self.parts.penalty is not None
        assert self.statistic is not None
        like = {self.parts.penalty.statistic: self.statistic}
        return Answer(like, self._mean, order=self.parts.penalty.order, exact=True)

    @property
    def keeps_replies(self) -> bool:
        """Return whether the server needs each silo's reply itself, because sums of them are not enough."""
        return self.parts.inter.keeps_values

    @property
    def _mean(self) -> Aggregator:
        """Return how s_e and control variates become one: by a mean, or by `inter` if it is robust."""
        return self.parts.inter if self.keeps_replies else Mean()

    def _clipped(self, aggregator: Aggregator) -> Aggregator:
        """Return an aggregator that clips to `max_norm`, if there is one."""
        max_norm = self.parts.options.max_norm
        return aggregator if max_norm is None else Clipped(aggregator, max_norm)

    def _update(self, name: str) -> Step:
        """Return the step whose answers update w."""
        algorithm, penalty = self.parts.algorithm, self.parts.penalty if name == MATCHED else None
        sends: dict[str, Like] = {}
        sent_numbers: dict[str, Range] = {}
        inter, weighted = self._clipped(self.parts.inter), algorithm.weights != "equal"
        answers = {self.update: Answer(self.weights, inter, weighted=weighted)}
        numbers = {"loss": _ANY, "examples": Range(1, MAX_EXAMPLES)}
        if penalty is not None:
            sent_numbers[PENALTY_WEIGHT] = Range(0, 1e30)
            numbers["distance"] = Range(0, MAX_NUMBER)
            if penalty.centred:
                sends[penalty.statistic] = self._statistics.like
            if not algorithm.adds_up_in_silo:
                answers[PENALTY] = Answer(self.weights, self._clipped(Sum()), cancels=True)
        if self.keeps_state:
            sends[CONTROL] = self.weights
            sent_numbers[STATE_SINCE] = Range(0, MAX_ROUNDS)
            control = self._clipped(self._mean)
            answers[CONTROL] = Answer(self.weights, control, cancels=True, exact=True)
            numbers[STATE_ROUND] = Range(0, MAX_ROUNDS)
        return Step(name, sends, sent_numbers, answers, numbers, completes=True)
