"""The round loop. It knows nothing of how bytes travel, and forgets each reply once accumulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedilc.aggregation import Aggregate
from fedilc.errors import DivergedError, SilosLostError
from fedilc.federation.control_variates import ControlVariates, ForgottenError
from fedilc.federation.messages import Carried, Reply, Request, check_reply
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
from fedilc.federation.silo_weights import SiloWeights
from fedilc.federation.step_sums import METRICS, NORMS, StepSums
from fedilc.federation.steps import Step
from fedilc.gradients.optimizers import RateSchedule
from fedilc.penalties import PenaltySchedule
from fedilc.seeds import numpy_generator

Record = dict[str, Any]
OnDivergence = Literal["stop", "exclude"]


class _LostError(Exception):
    """Silos that were asked and did not answer, or whose answers are set aside for a reason."""

    def __init__(self, silos: Iterable[str], reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(", ".join(silos))
        self.silos = tuple(silos)
        self.reasons = dict(reasons or {})


@dataclass
class _Outcome:
    """The result of a step: the aggregate of each group of tensors, and each silo's other answers."""

    aggregates: dict[str, Aggregate]
    answers: Facts
    norms: dict[str, Norms]


@dataclass
class Server:
    """Hold w and the optimiser, and run rounds over any runtime.

    Args:
        model: the model whose trainable parameters are w.
        optimizer: the optimiser over those parameters.
        runtime: puts requests to the silos.
        program: the steps of a round.
        weights: how much each silo counts in a mean.
        schedule: lambda by round, or None without a penalty.
        rate: the learning rate by round, as a factor.
        min_silos: how many silos a round needs at least.
        silos_per_round: how many silos are drawn for each round; None is all.
        seed: of that draw.
        test: measures the model on the out-of-distribution test set.
        bound: sets answers aside whose norm is far from usual.
        max_norm: to which each silo's update is clipped by the program's aggregators; None is not at all.
        on_divergence: whether a step that leaves weights or optimiser infinite ends the run, or the round is
            asked again without the silos that stand out.
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
    _parameters: dict[str, nn.Parameter] = field(init=False)
    _rates: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self.control = ControlVariates(self.weights if self.program.keeps_state else {})

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the participants' names, in the order of their records."""
        return self.runtime.silos

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return w by name, without graph; a view of the live parameters."""
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
        """Return the rest of what the next round depends on, as JSON; empty if that is nothing."""
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
        """Run one round: its steps, the server's own step, and evaluation. Return its record.

        If a silo is lost between the steps, the whole round is asked again without it, because a
        penalty gradient that misses one silo's term would be wrong. The same happens if an answer is set
        aside as an outlier; with `silos_per_round`, silos are then drawn again from the others. A silo whose
        answers were set aside in three rounds is not asked any more.
        """
        present, aside = self._drawn(number), dict[str, str]()
        while True:
            try:
                record = self._train(number, present)
                break
            except _LostError as lost:
                lost.reasons = self.bound.strike(lost.reasons)
                aside |= lost.reasons
                if lost.reasons:
                    self.runtime.set_aside(number, lost.reasons)
                redrawn = lost.reasons and self.silos_per_round is not None
                present = self._drawn(number, aside) if redrawn else self._without(present, lost, number)
            except ForgottenError as forgotten:
                self.control.begin_again(number, str(forgotten))
        if aside:
            record["set_aside"] = aside
        if evaluate:
            record |= self._evaluate(number, present)
        return record

    def _drawn(self, number: int, aside: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Return the silos to ask in a round: all that are present, or `silos_per_round` of them.

        Silos that are left out for good, or set `aside` in this round, are not among them.
        """
        without = self.bound.left_out | dict(aside or {})
        least = self.min_silos or (1 if self.silos_per_round else len(self.silos))
        if self.bound.left_out:
            self.runtime.leave_out(self.bound.left_out)
        there = tuple(silo for silo in self.runtime.present() if silo not in without)
        if without and len(there) < least:
            raise SilosLostError(
                f"round {number} sets {sentence(without)} aside, and {len(there)} of {len(self.silos)} silos "
                f"are left, fewer than min_silos={least}; start again without what is wrong there, with a "
                "lower min_silos or with a larger outlier_factor"
            )
        if self.silos_per_round is None or self.silos_per_round >= len(there):
            return there
        random = numpy_generator(self.seed, number, "silos")
        chosen = sorted(random.choice(len(there), self.silos_per_round, replace=False))
        return tuple(there[place] for place in chosen)

    def _train(self, number: int, silos: tuple[str, ...]) -> Record:
        """Run the steps of a round, each of which may send the results of those before it, and update w."""
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
        self.control.require_counted(answers)
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
        """Ask silos for a step, add up their answers, and hold them to the bound on norms."""
        total = StepSums(step, self._like(step), self.silo_weights, self.on_divergence == "stop")
        asked = self.runtime.mine(request.silos)
        for reply in self._checked(step, request):
            total.add(reply)
        missing = [silo for silo in asked if silo not in total.replies]
        if missing:
            raise _LostError(missing)
        found = self.runtime.combine(list(total.sums.values()), total.facts())
        answers = {silo: found[silo] for silo in request.silos if silo in found}
        norms = {name: self._bounded(step, name, answers) for name in step.answers}
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

    def _checked(self, step: Step, request: Request) -> Iterator[Reply | Carried]:
        """Yield each silo's first reply as it comes; sums are exact, so that the order changes no bit."""
        seen: set[str] = set()
        for reply in self.runtime.ask(request):
            check_reply(reply, request, step)
            if seen.isdisjoint(reply.silos):
                seen.update(reply.silos)
                yield reply

    def _bounded(self, step: Step, name: str, answers: Facts) -> Norms:
        """Return the norms of a step's answers; raise if some are to be set aside."""
        norms = {silo: facts[NORMS][name] for silo, facts in answers.items()}
        outliers = self.bound.outliers(name, norms, step.answers[name].cancels)
        if outliers:
            raise _LostError(outliers, outliers)
        return norms

    def _diverged(self, number: int, norms: Mapping[str, Norms]) -> Exception:
        """Return what follows from a step that was undone."""
        named = suspects(norms)
        if named and self.on_divergence == "exclude":
            return _LostError(named, named)
        what = f"the step of round {number} made weights or optimiser infinite and was undone"
        if named:
            return DivergedError(
                f"{what}; {sentence(named)} stands out: find out what is wrong there, or resume with "
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
        """Take a step; if weights or optimiser are no longer finite, undo it and return False."""
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
        """Bring the server's own state up to date after a completed round."""
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

    def _without(self, present: tuple[str, ...], lost: _LostError, number: int) -> tuple[str, ...]:
        left = tuple(silo for silo in present if silo not in lost.silos)
        needed = self.min_silos or self.silos_per_round or len(self.silos)
        if len(left) >= needed and left:
            return left
        few = f"{len(left)} of {len(self.silos)} silos are left, fewer than min_silos={needed}"
        if not lost.reasons:
            known = self.runtime.reasons(lost.silos)
            names = [f"{silo} ({known[silo]})" if silo in known else silo for silo in lost.silos]
            raise SilosLostError(
                f"round {number} lost {', '.join(names)} and {few}; bring them back or lower min_silos"
            )
        raise SilosLostError(
            f"round {number} sets {sentence(lost.reasons)} aside, and {few}; find out what is wrong there "
            "and resume, or start again with a lower min_silos; a larger outlier_factor takes such answers"
        )


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _blank(like: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.empty(t.shape, dtype=t.dtype, device=device) for name, t in like.items()}
