"""The program of a run: the steps of a round, as its algorithm needs them, for server and silos alike.

    statistics         each silo answers s_e, and the server takes the mean
    update             each silo answers its gradient, or w - w_e after local steps
    matched-update     the same with the penalty, given the mean of s_e and lambda
    evaluate           each silo evaluates the model on its validation set

A round without a penalty, or with lambda = 0, is `update`. With a penalty it is `statistics` and
`matched-update`, or `matched-update` alone if s_e is compared with 0 and not with the mean (IRM).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedilc.aggregation import Aggregator, Clipped, Mean, Sum, WeightedGeometricMean
from fedilc.algorithms import Algorithm, LocalSteps
from fedilc.algorithms.loss_registry import LossName, has_classes
from fedilc.algorithms.metric_registry import Metric, metrics_of
from fedilc.algorithms.parts import LEVELS, OPTIMIZERS, taken
from fedilc.config import Options
from fedilc.config.options import SiloOptions
from fedilc.errors import ConfigError
from fedilc.federation.protocol import Answer, Like, Range, Step
from fedilc.penalties import Penalty
from fedilc.storage.files import byte_size

STATISTICS, UPDATE, MATCHED, EVALUATE = "statistics", "update", "matched-update", "evaluate"
PENALTY_WEIGHT = "penalty_weight"
PENALTY, CONTROL, HESSIAN = "penalty", "control", "hessian"
STATE_ROUND, STATE_SINCE = "state_round", "state_since"
CLIPPED = "clipped"
SECURE_MIN_SIDE = 3  # of sums of logarithms: the sum of one silo is its own, and of two the other's
MAX_NUMBER = 1e100
MAX_EXAMPLES = 2**53
MAX_ROUNDS = 2**31
_ROUNDING = 1 + 1e-9  # a metric may exceed its maximum by this factor, from rounding
_ANY = Range(-MAX_NUMBER, MAX_NUMBER)


@dataclass(frozen=True)
class Program:
    """The steps of a run, as they follow from its algorithm, its loss and the settings of silos.

    Args:
        algorithm: with its parts as objects.
        loss: the name of the loss.
        options: the settings of silos.
        classifier: the name of the layer that gives the logits, if a penalty needs it.
        weights: w, as tensors without storage.
        statistic: s_e, as a tensor without storage; None if nothing is matched.
    """

    algorithm: Algorithm
    loss: LossName
    options: SiloOptions
    classifier: str | None
    weights: Like
    statistic: Tensor | None = None

    def __post_init__(self) -> None:
        metrics_of(self.loss, self.options.metrics or ())
        balance = self.options.balance
        if balance is not None and not has_classes(self.loss):
            raise ConfigError(
                f"balance={balance!r} balances classes, but loss={self.loss!r} has no classes; leave "
                "balance out"
            )
        if self.algorithm.is_newton and self.options.max_norm is not None:
            raise ConfigError(
                "max_norm clips gradients, which Newton's method needs as they are; leave it out"
            )
        if self.intra is not None and self.intra.keeps_values:
            raise ConfigError(
                f"intra={self.algorithm.name('intra')!r} would keep the gradient of every environment in "
                "memory; use it across silos, as inter"
            )

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """Return the metrics that every silo measures on its validation set, by name."""
        return metrics_of(self.loss, self.options.metrics or ())

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        loss: LossName,
        options: Options,
        model: nn.Module,
        find_classifier: Callable[[str | None], str | None] = lambda name: name,
    ) -> Program:
        """Return the program for a model; parts given by name get those of the options that they declare.

        `find_classifier` finds the layer that gives the logits, if a penalty needs it and no option names it.
        """
        weights = without_storage({name: p for name, p in model.named_parameters() if p.requires_grad})
        built = algorithm.built(options.for_parts)
        if (
            options.secure
            and isinstance(built.inter, WeightedGeometricMean)
            and "min_side" not in options.part_options
        ):
            inter = WeightedGeometricMean(built.inter.zeros, built.inter.agreement, SECURE_MIN_SIDE)
            built = replace(built, inter=inter)
        found = cls(built, loss, options, options.classifier, weights)
        penalty = found.penalty
        if penalty is None:
            return found
        classifier = find_classifier(options.classifier) if penalty.needs_classifier else options.classifier
        return replace(found, classifier=classifier, statistic=penalty.like(model, classifier).to("meta"))

    @cached_property
    def intra(self) -> Aggregator | None:
        """Return the aggregator of environments; None if the silo is one environment."""
        return cast(Aggregator, self.algorithm.intra) if self.algorithm.votes else None

    @cached_property
    def inter(self) -> Aggregator:
        """Return the aggregator of silos."""
        return cast(Aggregator, self.algorithm.inter)

    @cached_property
    def penalty(self) -> Penalty | None:
        """Return what silos match, if anything."""
        return cast(Penalty | None, self.algorithm.penalty)

    @cached_property
    def steps(self) -> dict[str, Step]:
        """Return all steps by name."""
        ranges = {
            name: Range(max(m.minimum, -MAX_NUMBER), min(m.maximum * _ROUNDING, MAX_NUMBER))
            for name, m in self.metrics.items()
        }
        found = [self._update(UPDATE), Step(EVALUATE, metrics={**ranges, "examples": _ANY})]
        penalty = self.penalty
        if penalty is not None:
            found.append(self._update(MATCHED))
        if penalty is not None and penalty.centred:
            found.append(
                Step(STATISTICS, answers={penalty.statistic: self._statistics}, numbers=self._rounding)
            )
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
        local = self.algorithm.local
        return local is not None and local.control_variates

    @property
    def update(self) -> str:
        """Return the name of a silo's update in messages and records."""
        return "gradient" if self.algorithm.local is None else "update"

    @property
    def _statistics(self) -> Answer:
        assert self.penalty is not None
        assert self.statistic is not None
        like = {self.penalty.statistic: self.statistic}
        return Answer(like, self._mean, order=self.penalty.order, exact=True)

    @property
    def keeps_replies(self) -> bool:
        """Return whether the server must keep every reply, because the aggregation is no function of sums."""
        return self.inter.keeps_values

    @property
    def _mean(self) -> Aggregator:
        """Return how s_e and control variates are aggregated: by a mean, or by `inter` if it is robust."""
        return self.inter if self.keeps_replies else Mean()

    def _clipped(self, aggregator: Aggregator) -> Aggregator:
        """Return an aggregator that clips to `max_norm`, if there is one and silos do not clip themselves."""
        max_norm = self.options.max_norm
        if max_norm is None or self.options.sum_unit is not None:
            return aggregator
        return Clipped(aggregator, max_norm)

    @property
    def _rounding(self) -> dict[str, Range]:
        """Return the number that says how many values a silo has clipped, if it rounds to `sum_unit`."""
        return {} if self.options.sum_unit is None else {CLIPPED: Range(0, MAX_NUMBER)}

    def _update(self, name: str) -> Step:
        """Return the step whose answers update w."""
        algorithm, penalty = self.algorithm, self.penalty if name == MATCHED else None
        sends: dict[str, Like] = {}
        sent_numbers: dict[str, Range] = {}
        inter, weighted = self._clipped(self.inter), algorithm.silo_weights != "equal"
        answers = {self.update: Answer(self.weights, inter, weighted=weighted, exact=algorithm.is_newton)}
        if algorithm.is_newton:
            size = sum(tensor.numel() for tensor in self.weights.values())
            like = {HESSIAN: torch.empty(size * (size + 1) // 2, dtype=torch.float64, device="meta")}
            answers[HESSIAN] = Answer(like, self.inter, weighted=weighted, exact=True)
        numbers = {"loss": _ANY, "examples": Range(1, MAX_EXAMPLES), **self._rounding}
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
    if algorithm.penalty is None or options.fishr_reduction == "mean":
        taken_here.add("reduction")  # an experiment sets it for every algorithm that it compares
    unused = {key: value for key, value in options.part_options.items() if key not in taken_here}
    if algorithm.is_newton and options.learning_rate != 1.0:
        unused["learning_rate"] = options.learning_rate
    if algorithm.silo_weights not in ("group-dro", "afl"):
        unused |= options.given("weights_step")
    if algorithm.silo_weights != "q-ffl":
        unused |= options.given("weights_power")
    if options.learning_rate_schedule != "step":
        unused |= options.given("decay_rounds", "decay_factor")
    if algorithm.is_newton:  # its last round is at the minimum already
        unused |= options.given("average")
    for key, kind in (("average_decay", "ema"), ("average_share", "last")):
        if options.average != kind:
            unused |= options.given(key)
    return unused


def without_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of the same shapes and dtypes that hold no numbers."""
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
