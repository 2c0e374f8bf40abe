"""Run the rounds of a training: ask silos for each step, aggregate their replies, update w.

The server holds w and the optimiser. Each reply is added to exact sums and dropped, in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedilc.aggregation import Aggregate
from fedilc.errors import DivergedError
from fedilc.federation.control_variates import ControlVariates, StateMismatchError
from fedilc.federation.messages import AggregatedReply, Reply, Request, check_reply
from fedilc.federation.optimizer_state import Undo, all_finite, optimizer_tensors, restore_optimizer
from fedilc.federation.outliers import NormBound, Norms, sentence, suspects
from fedilc.federation.program import (
    CONTROL,
    EVALUATE,
    PENALTY,
    PENALTY_WEIGHT,
    STATE_SINCE,
    Program,
)
from fedilc.federation.round_record import silo_records, training_record
from fedilc.federation.runtime import Facts, Runtime
from fedilc.federation.silo_selection import LostError, SiloSelection
from fedilc.federation.silo_weights import SiloWeights
from fedilc.federation.step_sums import METRICS, NORMS, StepSums
from fedilc.federation.steps import Step
from fedilc.gradients.optimizers import RateSchedule
from fedilc.penalties import PenaltySchedule

Record = dict[str, Any]
OnDivergence = Literal["stop", "exclude"]


@dataclass
class _Outcome:
    """The result of a step: the aggregate of each group of tensors, and the rest of each silo's reply."""

    aggregates: dict[str, Aggregate]
    answers: Facts
    norms: dict[str, Norms]


@dataclass
class Server:
    """Hold w and the optimiser, and run rounds over any runtime.

    Args:
        model: the model whose trainable parameters are w.
        optimizer: the optimiser over those parameters.
        runtime: sends requests to the silos.
        program: the steps of a round.
        silo_weights: the weight of each silo in a mean.
        schedule: lambda per round; None without a penalty.
        rate: the factor of the learning rate per round.
        min_silos: how many silos a round needs at least; None is all.
        silos_per_round: how many silos are drawn at random per round; None is all.
        seed: the seed of that draw.
        test: evaluates the model on the out-of-distribution test set.
        bound: decides which replies are outliers, and sets them aside.
        max_norm: the norm to which the program's aggregators clip each silo's update; None is no limit.
        on_divergence: "stop" ends the run if weights or optimiser become infinite; "exclude" repeats the
            round without the silos that stand out.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    runtime: Runtime
    program: Program
    silo_weights: SiloWeights = field(default_factory=SiloWeights)
    schedule: PenaltySchedule | None = None
    rate: RateSchedule = field(default_factory=RateSchedule)
    min_silos: int | None = None
    silos_per_round: int | None = None
    seed: int = 0
    test: Callable[[], dict[str, float | None]] | None = None
    bound: NormBound = field(default_factory=NormBound)
    max_norm: float | None = None
    on_divergence: OnDivergence = "stop"
    version: int = 0
    control: ControlVariates = field(init=False)
    _selection: SiloSelection = field(init=False)
    _parameters: dict[str, nn.Parameter] = field(init=False)
    _rates: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self.control = ControlVariates(self.weights if self.program.keeps_state else {})
        self._selection = SiloSelection(
            self.runtime, self.bound, self.min_silos, self.silos_per_round, self.seed
        )

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the names of all silos, in the order of the records."""
        return self.runtime.silos

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return w by name: views of the parameters, without a graph."""
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that the next round depends on, for a checkpoint."""
        groups = {
            "weights": self.weights,
            "optimizer": optimizer_tensors(self.optimizer),
            CONTROL: self.control.tensors,
        }
        return {f"{group}.{name}": t for group, named in groups.items() for name, t in named.items()}

    def facts(self) -> dict[str, Any]:
        """Return everything else that the next round depends on, as a JSON object; it may be empty."""
        found = {"silo_weights": self.silo_weights.state(), **self.control.facts()}
        return {key: value for key, value in found.items() if value}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], round_: int) -> None:
        """Restore the state after a round from what `tensors` and `facts` returned then."""
        for name, parameter in self._parameters.items():
            parameter.copy_(tensors[f"weights.{name}"])
        restore_optimizer(self.optimizer, _below(tensors, "optimizer."))
        self.control.restore(_below(tensors, f"{CONTROL}."), facts)
        self.silo_weights.restore(facts.get("silo_weights", {}))
        self.version = round_

    def round(self, number: int, evaluate: bool = True) -> Record:
        """Run one round: its steps, the update of w, and evaluation. Return its record.

        If a silo is lost in any step, the whole round is repeated without it, because a penalty gradient
        without one silo's term would be wrong. The same happens if a reply is set aside as an outlier; with
        `silos_per_round`, silos are then drawn again from the others.
        """
        aside: dict[str, str] = {}
        asked = self._selection.draw(number, aside)
        while True:
            try:
                record = self._train(number, asked)
                break
            except LostError as lost:
                lost.reasons = self.bound.strike(lost.reasons)
                aside |= lost.reasons
                if lost.reasons:
                    self.runtime.set_aside(number, lost.reasons)
                if lost.reasons and self.silos_per_round is not None:
                    asked = self._selection.draw(number, aside)
                else:
                    asked = self._selection.without(asked, lost, number)
            except StateMismatchError as mismatch:
                self.control.reset(number, str(mismatch))
        if aside:
            record["set_aside"] = aside
        if evaluate:
            record |= self._evaluate(number, asked)
        return record

    def _train(self, number: int, silos: tuple[str, ...]) -> Record:
        """Run the steps of a round, each of which may send results of the steps before it, and update w."""
        penalty_weight = self.schedule.at(number) if self.schedule else 0.0
        known: dict[str, Mapping[str, Tensor]] = {CONTROL: self.control.tensors}
        measurements: dict[str, dict[str, float]] = {}
        norms: dict[str, Norms] = {}
        answers: Facts = {}
        for step in self.program.round(penalty_weight):
            numbers = {PENALTY_WEIGHT: penalty_weight, STATE_SINCE: self.control.since}
            outcome = self._ask(step, self._request(step, number, silos, known, numbers))
            known |= {name: aggregate.value for name, aggregate in outcome.aggregates.items()}
            norms |= outcome.norms
            answers = outcome.answers
            if self.program.update in outcome.aggregates:
                measurements = outcome.aggregates[self.program.update].measurements
        self.control.require_matching(answers)
        if not self._update(number, known[self.program.update], known.get(PENALTY), penalty_weight):
            raise self._diverged(number, norms)
        reduction = self.program.parts.reduction
        record = training_record(number, answers, self.silo_weights, penalty_weight, reduction)
        record["norms"] = self.bound.remember(norms)
        record |= {key: dict(by_name) for key, by_name in measurements.items()}
        record["silos"] = silo_records(answers, norms[self.program.update], self.max_norm)
        self._learn(number, answers, known)
        return record

    def _request(
        self,
        step: Step,
        number: int,
        silos: tuple[str, ...],
        known: Mapping[str, Mapping[str, Tensor]],
        numbers: Mapping[str, float],
    ) -> Request:
        tensors = {name: known[name] for name in step.sends}
        sent = {name: numbers[name] for name in step.sent_numbers}
        learnt = self.silo_weights.state()
        return Request(step.name, number, self.version, silos, self.weights, tensors, sent, learnt)

    def _ask(self, step: Step, request: Request) -> _Outcome:
        """Ask silos for a step, add up their replies, and raise if one is lost or an outlier."""
        total = StepSums(step, self._like(step), self.silo_weights, self.on_divergence == "stop")
        asked = self.runtime.mine(request.silos)
        for reply in self._checked(step, request):
            total.add(reply)
        missing = [silo for silo in asked if silo not in total.replies]
        if missing:
            raise LostError(missing)
        found = self.runtime.combine(list(total.sums.values()), total.facts())
        answers = {silo: found[silo] for silo in request.silos if silo in found}
        norms = {name: self._norms(step, name, answers) for name in step.answers}
        aggregates = {name: rule.finalize(state) for name, (rule, state) in total.sums.items()}
        return _Outcome(aggregates, answers, norms)

    def _like(self, step: Step) -> dict[str, Mapping[str, Tensor]]:
        """Return tensors like the aggregates of a step, on the device of w."""
        device = next(iter(self._parameters.values())).device
        return {
            name: self.weights
            if answer.like.keys() == self._parameters.keys()
            else _blank(answer.like, device)
            for name, answer in step.answers.items()
        }

    def _checked(self, step: Step, request: Request) -> Iterator[Reply | AggregatedReply]:
        """Yield each silo's first reply, checked, in the order of arrival."""
        seen: set[str] = set()
        for reply in self.runtime.ask(request):
            check_reply(reply, request, step)
            if seen.isdisjoint(reply.silos):
                seen.update(reply.silos)
                yield reply

    def _norms(self, step: Step, name: str, answers: Facts) -> Norms:
        """Return the norms of a group of tensors by silo; raise if some are outliers."""
        norms = {silo: facts[NORMS][name] for silo, facts in answers.items()}
        outliers = self.bound.outliers(name, norms, step.answers[name].cancels)
        if outliers:
            raise LostError(outliers, outliers)
        return norms

    def _diverged(self, number: int, norms: Mapping[str, Norms]) -> Exception:
        """Return the error to raise after an update that was undone."""
        named = suspects(norms)
        if named and self.on_divergence == "exclude":
            return LostError(named, named)
        what = f"the update of round {number} made weights or optimiser infinite and was undone"
        if named:
            return DivergedError(
                f"{what}; {sentence(named)} stands out: correct the problem there, or resume with "
                "on_divergence=exclude to continue without it"
            )
        return DivergedError(f"{what}; no silo stands out: lower the learning rate or the penalty")

    @torch.no_grad()
    def _update(
        self,
        number: int,
        update: Mapping[str, Tensor],
        penalty_gradient: Mapping[str, Tensor] | None,
        penalty_weight: float,
    ) -> bool:
        """Take an optimiser step with update + lambda * penalty gradient; return False if it was undone."""
        total = dict(update)
        if penalty_gradient is not None:
            for name, product in penalty_gradient.items():
                total[name] = total[name] + penalty_weight * product
        before = Undo(self.weights, self.optimizer)
        for name, parameter in self._parameters.items():
            parameter.grad = total[name]
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * self.rate.factor(number)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not all_finite(self.weights, self.optimizer):
            before.restore(self.weights, self.optimizer)
            return False
        self.version += 1
        return True

    def _learn(self, number: int, answers: Facts, known: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Update the server's other state after a completed round."""
        self.silo_weights.learn({silo: facts["loss"] or 0.0 for silo, facts in answers.items()})
        self.control.learn(number, known[CONTROL], answers, len(self.silos))

    def _evaluate(self, number: int, silos: tuple[str, ...]) -> Record:
        step = self.program.steps[EVALUATE]
        request = self._request(step, number, silos, {}, {})
        total = StepSums(step, {}, self.silo_weights)
        for reply in self._checked(step, request):
            total.add(reply)
        measured = {silo: facts for silo, facts in total.facts().items() if METRICS in facts}
        found = self.runtime.combine([], measured)
        record: Record = {"validation": {silo: found[silo][METRICS] for silo in silos if silo in found}}
        if self.test is not None:
            record["test"] = self.test()
        return record


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _blank(like: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.empty(t.shape, dtype=t.dtype, device=device) for name, t in like.items()}
