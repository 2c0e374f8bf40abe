"""The program of a round: the steps that an algorithm's parts need, declared once for server and silos.

    statistics         each silo answers s_e, if silos match a statistic; the server needs its mean
    update             each silo answers its gradient, or w - w_e after local steps
    matched-update     the same with the penalty, given the mean of s_e and lambda
    evaluate           each silo evaluates the model on its validation set

A round is `statistics` and `matched-update` if there is a penalty with lambda > 0, and `update` if not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedilc.aggregation import Aggregator, Clipped, Mean, Sum
from fedilc.algorithms.loss_name import has_classes
from fedilc.federation.run_parts import RunParts
from fedilc.federation.steps import Answer, Like, Range, Step
from fedilc.federation.tensor_files import byte_size

STATISTICS, UPDATE, MATCHED, EVALUATE = "statistics", "update", "matched-update", "evaluate"
PENALTY_WEIGHT = "penalty_weight"
PENALTY, CONTROL = "penalty", "control"
STATE_ROUND, STATE_SINCE = "state_round", "state_since"
MAX_NUMBER = 1e100
MAX_EXAMPLES = 2**53
MAX_ROUNDS = 2**31
_FRACTION, _ANY = Range(0, 1), Range(-MAX_NUMBER, MAX_NUMBER)
_AREAS = {"accuracy": _FRACTION, "auroc": _FRACTION, "auprc": _FRACTION}
_CLASSIFICATION = {"loss": _ANY, **_AREAS, "examples": _ANY}
_REGRESSION = {"loss": _ANY, "rmse": _ANY, "mae": _ANY, "r2": Range(-MAX_NUMBER, 1), "examples": _ANY}


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
        return Answer(like, Mean(), order=self.parts.penalty.order, exact=True)

    def _clipped(self, aggregator: Aggregator) -> Aggregator:
        """Return an aggregator that clips to `max_norm`, if there is one."""
        return aggregator if self.parts.max_norm is None else Clipped(aggregator, self.parts.max_norm)

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
            answers[CONTROL] = Answer(self.weights, self._clipped(Mean()), exact=True)
            numbers[STATE_ROUND] = Range(0, MAX_ROUNDS)
        return Step(name, sends, sent_numbers, answers, numbers, completes=True)
