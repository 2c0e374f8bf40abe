"""The round loop. It knows nothing of how bytes travel, and forgets each reply once accumulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedilc.aggregation import Aggregate, Aggregator, Mean, Sum, Sums
from fedilc.aggregation.base import require_finite
from fedilc.errors import DivergedError, SilosLostError
from fedilc.federation.messages import (
    CollectiveRuntime,
    InformedRuntime,
    Numbers,
    Phase,
    Reply,
    Request,
    Runtime,
    WatchfulRuntime,
    check_reply,
    in_order,
    norm_key,
)
from fedilc.federation.optimizer_state import Undo, all_finite
from fedilc.federation.outliers import NormBound, Norms, clipped, norm_of, sentence, suspects
from fedilc.federation.schedule import Schedule
from fedilc.federation.task import Reduction
from fedilc.seeds import numpy_generator

Record = dict[str, Any]
OnDivergence = Literal["stop", "exclude"]
_NOTHING = torch.empty(0)


class _LostError(Exception):
    """Silos that were asked and did not answer, or whose answers are set aside for a reason."""

    def __init__(self, silos: Iterable[str], reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(", ".join(silos))
        self.silos = tuple(silos)
        self.reasons = dict(reasons or {})


@dataclass
class Server:
    """Holds w and the optimiser, and runs rounds over whatever runtime it is given.

    Args:
        model: the model whose trainable parameters are w.
        optimizer: the optimiser over those parameters.
        runtime: puts requests to the silos.
        silos: who takes part, in the order in which replies are accumulated.
        inter: how the silos' gradients become one.
        by_examples: whether a silo counts in a mean as often as it has examples.
        schedule: lambda by round, or None without a penalty.
        adds_up_in_silo: whether the Fishr product comes inside the gradient.
        reduction: whether the Fishr loss is the mean over silos or their sum.
        min_silos: how many silos a round needs at least.
        silos_per_round: how many silos are drawn for each round; None is all.
        seed: of that draw.
        variance_like: a tensor of the shape and type of C_e; None takes the first reply's.
        test: measures the model on the out-of-distribution test set.
        bound: sets answers aside whose norm is far from usual.
        max_norm: to which each silo's gradient is clipped; None is not at all.
        on_divergence: whether a step that leaves weights or optimiser infinite ends the run, or the round is
            asked again without the silos that stand out.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    runtime: Runtime
    silos: tuple[str, ...]
    inter: Aggregator
    by_examples: bool = False
    schedule: Schedule | None = None
    adds_up_in_silo: bool = True
    reduction: Reduction = "mean"
    min_silos: int | None = None
    silos_per_round: int | None = None
    seed: int = 0
    variance_like: Tensor | None = None
    test: Callable[[], dict[str, float | None]] | None = None
    bound: NormBound = field(default_factory=NormBound)
    max_norm: float | None = None
    on_divergence: OnDivergence = "stop"
    version: int = 0
    _parameters: dict[str, nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        self._parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    @property
    def weights(self) -> dict[str, Tensor]:
        """w by name, without graph; a view of the live parameters."""
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    def round(self, number: int, evaluate: bool = True) -> Record:
        """One round: statistics, gradients, step, and evaluation. Returns its record.

        If a silo is lost between the phases, the whole round is asked again without it, because a
        penalty gradient that misses one silo's term would be wrong. So it is if an answer is set aside;
        of silos that were drawn, others are then drawn in place of all, or fewer if there are no others. A
        silo set aside in three rounds is left out for good.
        """
        present, aside = self._drawn(number), dict[str, str]()
        while True:
            try:
                record = self._step(number, present)
                break
            except _LostError as lost:
                lost.reasons = self.bound.strike(lost.reasons)
                aside |= lost.reasons
                if lost.reasons and isinstance(self.runtime, InformedRuntime):
                    self.runtime.set_aside(number, lost.reasons)
                redrawn = lost.reasons and self.silos_per_round is not None
                present = self._drawn(number, aside) if redrawn else self._without(present, lost, number)
        if aside:
            record["set_aside"] = aside
        if evaluate:
            record |= self._evaluate(number, present)
        return record

    def _drawn(self, number: int, aside: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Who is asked in a round: all that are there, or as many of them as `silos_per_round` says.

        Those left out for good and those that the round sets `aside` are not among them.
        """
        without = self.bound.left_out | dict(aside or {})
        least = self.min_silos or (1 if self.silos_per_round else len(self.silos))
        if self.bound.left_out and isinstance(self.runtime, InformedRuntime):
            self.runtime.leave_out(self.bound.left_out)
        there = self.runtime.present() if isinstance(self.runtime, WatchfulRuntime) else self.silos
        there = tuple(silo for silo in there if silo not in without)
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

    def _step(self, number: int, silos: tuple[str, ...]) -> Record:
        record: Record = {"round": number}
        penalty = self.schedule.at(number) if self.schedule else 0.0
        norms: dict[str, Norms] = {}
        variance = self._mean_variance(number, silos, norms) if penalty else None
        request = self._request("gradients", number, silos, variance, penalty)
        gradients = self.inter.zero(self.weights)
        products = None
        if variance is not None and not self.adds_up_in_silo:
            products = Sum().zero(self.weights)
        sums = [(self.inter, gradients)] if products is None else [(self.inter, gradients), (Sum(), products)]
        kinds = list(self._expected(products))
        answers: Numbers = {}
        for reply in self._ask(request, self._expected(products)):
            answers[reply.silo] = reply.numbers | self._add(reply, list(zip(kinds, sums, strict=True)))
        answers = self._combine(sums, answers, silos)
        for kind in kinds:
            norms[kind] = self._bounded(kind, answers)
        aggregate = self.inter.finalize(gradients)
        if not self._update(aggregate, products, penalty):
            raise self._diverged(number, norms)
        record["train_loss"] = self._mean_loss(answers)
        if penalty:
            distance = _mean([numbers["distance"] for numbers in answers.values()])
            record["penalty"] = distance * (len(silos) if self.reduction == "sum" else 1)
            record["penalty_weight"] = penalty
        record["norms"] = self.bound.remember(norms)
        record |= {key: dict(by_name) for key, by_name in aggregate.measurements.items()}
        record["silos"] = {
            silo: {"examples": numbers["examples"], "train_loss": numbers["loss"]}
            for silo, numbers in answers.items()
        }
        return record

    def _mean_loss(self, answers: Numbers) -> float:
        """The loss that the gradients are of: the mean over silos, or over their examples."""
        if not self.by_examples:
            return _mean([numbers["loss"] for numbers in answers.values()])
        total = sum(_examples(numbers) for numbers in answers.values())
        return sum(_examples(numbers) * (numbers["loss"] or 0.0) for numbers in answers.values()) / total

    def _mean_variance(self, number: int, silos: tuple[str, ...], norms: dict[str, Norms]) -> Tensor:
        request = self._request("statistics", number, silos)
        mean, state = Mean(), None
        answers: Numbers = {}
        expected = None if self.variance_like is None else {"variance": {"C": self.variance_like}}
        if self.variance_like is not None:
            state = mean.zero({"C": self.variance_like})
        for reply in self._ask(request, expected):
            if state is None:
                state = mean.zero(reply.tensors["variance"])
            answers[reply.silo] = self._add(reply, [("variance", (mean, state))])
        assert state is not None
        norms["variance"] = self._bounded("variance", self._combine([(mean, state)], answers, silos))
        return mean.finalize(state).value["C"]

    def _add(
        self, reply: Reply, sums: Sequence[tuple[str, tuple[Aggregator, Sums]]]
    ) -> dict[str, float | None]:
        """Add an answer to the sums of its kinds, unless it is infinite; returns its norms."""
        found: dict[str, float | None] = {}
        source = f"silo {reply.silo!r}"
        for kind, (aggregator, state) in sums:
            values = reply.tensors[kind]
            norm = found[norm_key(kind)] = norm_of(values, kind)
            if norm < math.inf:
                most = None if kind == "variance" else self.max_norm
                values = clipped(values, norm, most)
                if kind == "gradient" and self.by_examples and isinstance(aggregator, Mean):
                    aggregator.accumulate_weighted(state, values, _examples(reply.numbers), source)
                else:
                    aggregator.accumulate(state, values, source)
            elif self.on_divergence == "stop":
                for name, value in values.items():
                    require_finite(value, source, name)
        return found

    def _bounded(self, kind: str, answers: Numbers) -> Norms:
        """Return the norms of a phase's answers; raises if some are to be set aside."""
        norms = {silo: numbers[norm_key(kind)] or 0.0 for silo, numbers in answers.items()}
        outliers = self.bound.outliers(kind, norms)
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
                "on_divergence=exclude to go on without it"
            )
        return DivergedError(f"{what}; no silo stands out: lower the learning rate or the penalty")

    def _combine(
        self, sums: Sequence[tuple[Aggregator, Sums]], answers: Numbers | None, silos: tuple[str, ...]
    ) -> Numbers:
        """With other processes that have silos: their sums added, their numbers collected in order."""
        if not isinstance(self.runtime, CollectiveRuntime):
            return answers or {}
        found = self.runtime.combine(sums, answers)
        return {silo: found[silo] for silo in silos if silo in found}

    @torch.no_grad()
    def _update(self, aggregate: Aggregate, products: Sums | None, penalty: float) -> bool:
        """Take a step; if weights or optimiser are no longer finite, undo it and return False."""
        total = dict(aggregate.value)
        if products is not None:
            for name, product in Sum().finalize(products).value.items():
                total[name] = total[name] + penalty * product
        before = Undo(self.weights, self.optimizer)
        for name, parameter in self._parameters.items():
            parameter.grad = total[name]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not all_finite(self.weights, self.optimizer):
            before.restore(self.weights, self.optimizer)
            return False
        self.version += 1
        return True

    def _evaluate(self, number: int, silos: tuple[str, ...]) -> Record:
        request = self._request("evaluate", number, silos)
        validation: Numbers = {}
        for reply in in_order(self._checked(request, {}), self._asked(silos)):
            if reply.numbers:
                validation[reply.silo] = reply.numbers
        record: Record = {"validation": self._combine([], validation, silos)}
        if self.test is not None:
            record["test"] = self.test()
        return record

    def _request(
        self,
        phase: Phase,
        number: int,
        silos: tuple[str, ...],
        variance: Tensor | None = None,
        penalty: float | None = None,
    ) -> Request:
        lambda_ = penalty if variance is not None else None
        return Request(phase, number, self.version, silos, self.weights, variance, lambda_)

    def _expected(self, products: Sums | None) -> dict[str, dict[str, Tensor]]:
        expected = {"gradient": self.weights}
        return expected if products is None else expected | {"penalty": self.weights}

    def _ask(self, request: Request, expected: dict[str, dict[str, Tensor]] | None) -> Iterator[Reply]:
        """Checked replies in silo order; raises at the end if someone did not answer."""
        answered: set[str] = set()
        asked = self._asked(request.silos)
        for reply in in_order(self._checked(request, expected), asked):
            answered.add(reply.silo)
            yield reply
        missing = [silo for silo in asked if silo not in answered]
        if missing:
            raise _LostError(missing)

    def _asked(self, silos: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the silos whose replies come to this process."""
        return self.runtime.mine(silos) if isinstance(self.runtime, CollectiveRuntime) else silos

    def _checked(self, request: Request, expected: dict[str, dict[str, Tensor]] | None) -> Iterator[Reply]:
        for reply in self.runtime.ask(request):
            if expected is None:
                expected = {"variance": {"C": reply.tensors.get("variance", {}).get("C", _NOTHING)}}
            check_reply(reply, request, expected)
            yield reply

    def _without(self, present: tuple[str, ...], lost: _LostError, number: int) -> tuple[str, ...]:
        left = tuple(silo for silo in present if silo not in lost.silos)
        needed = self.min_silos or self.silos_per_round or len(self.silos)
        if len(left) >= needed and left:
            return left
        few = f"{len(left)} of {len(self.silos)} silos are left, fewer than min_silos={needed}"
        if not lost.reasons:
            known = self.runtime.reasons(lost.silos) if isinstance(self.runtime, InformedRuntime) else {}
            names = [f"{silo} ({known[silo]})" if silo in known else silo for silo in lost.silos]
            raise SilosLostError(
                f"round {number} lost {', '.join(names)} and {few}; bring them back or lower min_silos"
            )
        raise SilosLostError(
            f"round {number} sets {sentence(lost.reasons)} aside, and {few}; find out what is wrong there "
            "and resume, or start again with a lower min_silos; a larger outlier_factor takes such answers"
        )


def _mean(numbers: Sequence[float | None]) -> float:
    return sum(number or 0.0 for number in numbers) / len(numbers)


def _examples(numbers: Mapping[str, float | None]) -> int:
    return int(numbers["examples"] or 0)
