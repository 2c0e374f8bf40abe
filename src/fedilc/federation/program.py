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

from fedilc.aggregation import Aggregator, Clipped, Mean, Sum
from fedilc.algorithms import Algorithm, LocalSteps
from fedilc.algorithms.algorithm import NEWTON
from fedilc.algorithms.loss_name import LossName, has_classes
from fedilc.algorithms.metric_name import Metric, metrics_of
from fedilc.algorithms.part_registry import PartRegistry
from fedilc.algorithms.parts import LEVELS, OPTIMIZERS, taken
from fedilc.config import Options
from fedilc.config.options import SiloOptions
from fedilc.errors import ConfigError
from fedilc.federation.steps import Answer, Like, Range, Step
from fedilc.federation.tensor_files import byte_size
from fedilc.penalties import Penalty

STATISTICS, UPDATE, MATCHED, EVALUATE = "statistics", "update", "matched-update", "evaluate"
PENALTY_WEIGHT = "penalty_weight"
PENALTY, CONTROL, HESSIAN = "penalty", "control", "hessian"
STATE_ROUND, STATE_SINCE = "state_round", "state_since"
MAX_NUMBER = 1e100
MAX_EXAMPLES = 2**53
MAX_ROUNDS = 2**31
_ROUNDING = 1 + 1e-9  # room for it above the maximum of a metric
_ANY = Range(-MAX_NUMBER, MAX_NUMBER)


@dataclass(frozen=True)
class RunParts:
    """The algorithm's parts as objects, for server and silos.

    Args:
        algorithm: the choices that they are built from.
        loss: the name of the loss.
        options: the settings of silos.
        intra: the aggregator of environments; None if the silo is one environment.
        inter: the aggregator of silos.
        penalty: what silos match, if anything.
        classifier: the name of the layer that gives the logits, if a penalty needs it.
    """

    algorithm: Algorithm
    loss: LossName
    options: SiloOptions
    intra: Aggregator | None
    inter: Aggregator
    penalty: Penalty | None
    classifier: str | None

    def __post_init__(self) -> None:
        metrics_of(self.loss, self.options.metrics or ())
        balance = self.options.balance
        if balance is not None and not has_classes(self.loss):
            raise ConfigError(
                f"balance={balance!r} balances classes, and loss={self.loss!r} has no classes; "
                "leave balance out"
            )
        if self.algorithm.is_newton and self.options.max_norm is not None:
            raise ConfigError(
                "max_norm clips gradients, which Newton's method needs as they are; leave it out"
            )
        if self.intra is not None and self.intra.keeps_values:
            raise ConfigError(
                f"intra={self.algorithm.intra!r} would keep the gradient of every environment in memory; "
                "use it across silos, as inter"
            )

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """Return the metrics that every silo measures on its validation set, by name."""
        return metrics_of(self.loss, self.options.metrics or ())

    def describe(self) -> dict[str, Any]:
        """Return the algorithm's choices, as run folders record them."""
        return {**self.described(), **self.algorithm.describe()}

    def described(self) -> dict[str, dict[str, Any] | None]:
        """Return each part as its name and all its options, from which `described_parts` builds it again.

        A part whose class is not registered has its class and its attributes as text: it can be recorded,
        and not sent.
        """
        return {level: _description(registry, getattr(self, level)) for level, registry in LEVELS.items()}


def make_parts(algorithm: Algorithm, loss: LossName, options: Options) -> RunParts:
    """Return the parts of a run, each with those of the run's options that it declares."""
    given = _given(options, *SiloOptions.model_fields) | options.part_options

    built: dict[str, Any] = dict.fromkeys(LEVELS)
    for level, choice in algorithm.parts.items():
        built[level] = LEVELS[level].build(choice, **taken(LEVELS[level], choice, given))
    return RunParts(algorithm, loss, options, **built, classifier=options.classifier)


def described_parts(
    described: Mapping[str, Mapping[str, Any] | None],
    update: str | LocalSteps,
    silo_weights: str | Mapping[str, float],
    loss: LossName,
    options: SiloOptions,
) -> RunParts:
    """Return the parts that `RunParts.describe` described; names are looked up in this installation."""
    given = {level: part for level, part in described.items() if part is not None}
    algorithm = Algorithm(
        update=update,
        silo_weights=silo_weights,
        optimizer=NEWTON if update == NEWTON else "adam",
        **{level: part["name"] for level, part in given.items()},
    )
    built: dict[str, Any] = dict.fromkeys(LEVELS)
    built |= {level: LEVELS[level].build(**part) for level, part in given.items()}
    return RunParts(algorithm, loss, options, **built, classifier=options.classifier)


def _description(registry: PartRegistry[Any], part: object) -> dict[str, Any] | None:
    if part is None:
        return None
    unnamed = {"class": type(part).__name__} | {key: repr(value) for key, value in vars(part).items()}
    return registry.describe(part) or unnamed


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
    taken_here = set(LocalSteps.FLAT) if algorithm.local is not None else set()
    parts = [(LEVELS[level], choice) for level, choice in algorithm.parts.items()]
    for registry, choice in (*parts, (OPTIMIZERS, algorithm.optimizer)):
        taken_here |= taken(registry, choice, options.part_options).keys()
    unused = {key: value for key, value in options.part_options.items() if key not in taken_here}
    if algorithm.is_newton and options.learning_rate != 1.0:
        unused["learning_rate"] = options.learning_rate
    if algorithm.silo_weights not in ("group-dro", "afl"):
        unused |= _given(options, "weights_step")
    if algorithm.silo_weights != "q-ffl":
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
        ranges = {
            name: Range(max(m.minimum, -MAX_NUMBER), min(m.maximum * _ROUNDING, MAX_NUMBER))
            for name, m in self.parts.metrics.items()
        }
        found = [self._update(UPDATE), Step(EVALUATE, metrics={**ranges, "examples": _ANY})]
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
        inter, weighted = self._clipped(self.parts.inter), algorithm.silo_weights != "equal"
        answers = {self.update: Answer(self.weights, inter, weighted=weighted, exact=algorithm.is_newton)}
        if algorithm.is_newton:
            size = sum(tensor.numel() for tensor in self.weights.values())
            like = {HESSIAN: torch.empty(size * (size + 1) // 2, dtype=torch.float64, device="meta")}
            answers[HESSIAN] = Answer(like, self.parts.inter, weighted=weighted, exact=True)
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
