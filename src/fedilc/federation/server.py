"""Run the rounds of a training: select silos, ask them for each step, aggregate replies, update w.

`Server.round` is a whole round, in this order; methods follow in the order in which it calls them:

1. `SiloSelection.draw` chooses the silos.
2. For each step of the program (FedAvg has one, `update`; Fishr has `statistics` and `matched-update`),
   `_ask` sends w to them, adds up their replies as they arrive, and aggregates the sums. `client.py` has what
   a silo computes.
3. `_update` takes an optimiser step with the aggregate, and undoes it if w is no longer finite.
4. `_evaluate` asks for the metrics of the new w, or of its average (`averaging.py`), on the silos' validation
   sets.

If a silo is lost or set aside in 2 or 3, the round is repeated without it from 2 on.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from fedilc.aggregation import Aggregate, norm_of
from fedilc.aggregation.base import is_finite
from fedilc.config import Options
from fedilc.errors import DivergedError, FedILCWarning, NonFiniteError, SilosLostError, silos_with_reasons
from fedilc.federation.averaging import WeightAverage
from fedilc.federation.control_variates import ControlVariates, StateMismatchError
from fedilc.federation.outliers import NormBound, Norms, Opposition, suspects
from fedilc.federation.program import (
    CLIPPED,
    CONTROL,
    EVALUATE,
    HESSIAN,
    PENALTY,
    PENALTY_WEIGHT,
    STATE_ROUND,
    STATE_SINCE,
    Program,
)
from fedilc.federation.protocol import (
    AggregatedReply,
    Reply,
    Request,
    SiloNumbers,
    Step,
    TotalReply,
    check_reply,
)
from fedilc.federation.step_sums import COSINE, METRICS, NORMS, SiloWeights, StepSums
from fedilc.gradients.newton import Newton
from fedilc.gradients.penalty_weight import PenaltySchedule, add_penalty
from fedilc.optimizers.optimizers import RateSchedule, optimizer_tensors, restore_optimizer
from fedilc.seeds import numpy_generator
from fedilc.storage.files import tensors_below

if TYPE_CHECKING:
    from fedilc.runtimes.base import Runtime

# Weights are extreme above this multiple of their initial norm (or of 1): float32 gradients at such weights
# may overflow, so that honest silos reply with infinities.
EXTREME = 1000.0
DIRECTION = "direction"
PLAIN = "unaveraged"
Record = dict[str, Any]
OnDivergence = Literal["stop", "exclude"]


@dataclass
class Server:
    """Hold w and the optimiser, and run rounds over any runtime.

    Args:
        model: the model whose trainable parameters are w.
        optimizer: the optimiser over those parameters.
        runtime: sends requests to the silos.
        program: the steps of a round.
        selection: which silos a round asks, and how it continues if some are lost.
        silo_weights: the weight of each silo in a mean.
        schedule: lambda per round; None without a penalty.
        rate: the factor of the learning rate per round.
        average: the average of w that is evaluated and saved.
        on_divergence: "stop" ends the run if weights or optimiser become infinite; "exclude" repeats the
            round without the silos that stand out.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    runtime: Runtime
    program: Program
    selection: SiloSelection
    silo_weights: SiloWeights = field(default_factory=SiloWeights)
    schedule: PenaltySchedule | None = None
    rate: RateSchedule = field(default_factory=RateSchedule)
    average: WeightAverage = field(default_factory=WeightAverage)
    on_divergence: OnDivergence = "stop"
    version: int = 0
    opposition: Opposition = field(init=False, default_factory=Opposition)
    control: ControlVariates = field(init=False)
    _parameters: dict[str, nn.Parameter] = field(init=False)
    _rates: list[float] = field(init=False)
    _extreme_norm: float = field(init=False)
    _warned: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self._extreme_norm = EXTREME * max(1.0, norm_of(self.weights))
        self.control = ControlVariates(self.weights if self.program.keeps_state else {})

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the names of all silos, in the order of the records."""
        return self.runtime.silos

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return w by name, between rounds its average: views of the parameters, without a graph."""
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    @property
    def converged(self) -> bool:
        """Return whether Newton's method has found the minimum, so that further rounds change nothing."""
        return isinstance(self.optimizer, Newton) and self.optimizer.converged

    def round(self, number: int, evaluate: bool = True) -> Record:
        """Run one round: draw silos, run the steps and update w, then evaluate. Return its record.

        If a silo is lost in any step, all steps are repeated without it (see `SiloSelection`).
        """
        self.version += self.average.leave(self.weights)
        aside: dict[str, str] = {}
        asked = self.selection.draw(number, aside)
        # This ends: a repetition has fewer silos, or follows a reset of control variates, which then match.
        left_out = None
        while True:
            try:
                record = self._train(number, asked, matched=left_out is None)
                break
            except WithoutPenaltyError as lost:
                asked, left_out = lost.silos, str(lost)
            except RepeatRoundError as lost:
                asked = self.selection.without(lost, asked, number, aside)
            except StateMismatchError as mismatch:
                self.control.reset(number, str(mismatch))
        if aside:
            record["set_aside"] = aside
        if left_out is not None:
            record["without_penalty"] = left_out
        self.version += self.average.enter(number, self.weights)
        if self.converged if isinstance(self.optimizer, Newton) else evaluate:
            record |= self._evaluate(number, asked)
        return record

    def _train(self, number: int, silos: tuple[str, ...], matched: bool = True) -> Record:
        """Run the steps of a round and update w; return the record without evaluation.

        In order: ask the silos for each step, which may send what earlier steps found; check that silos used
        the right control variates; add the penalty gradient; take an optimiser step; then, only because the
        step was kept, update what later rounds compare with (norms, directions, weights of silos, c).
        """
        penalty_weight = self.schedule.at(number) if self.schedule and matched else 0.0
        known: dict[str, Mapping[str, Tensor]] = {CONTROL: self.control.tensors}
        measurements: dict[str, dict[str, float]] = {}
        norms: dict[str, Norms] = {}
        replies: SiloNumbers = {}
        total: TotalReply | None = None
        clipped = 0.0
        for step in self.program.round(penalty_weight):
            numbers = {PENALTY_WEIGHT: penalty_weight, STATE_SINCE: self.control.since}
            request = self._request(step, number, silos, known, numbers)
            if self.runtime.sums_only:
                exactly = bool(known.keys() - {CONTROL})
                total = self.runtime.total(request, self._like(step), exactly, self._check_states)
                silos = total.silos  # the next steps of the round are over the same ones
                aggregates = {
                    name: answer.aggregator.finalize(total.sums[name])
                    for name, answer in step.answers.items()
                }
                clipped += total.numbers[CLIPPED]
            else:
                aggregates, replies, found = self._ask(step, request)
                norms |= found
                clipped += sum(reply.get(CLIPPED, 0) for reply in replies.values())
            # The mean of s_e, found in `statistics`, is sent in `matched-update` under the same name.
            known |= {name: aggregate.value for name, aggregate in aggregates.items()}
            if self.program.update in aggregates:
                measurements = aggregates[self.program.update].measurements
        self.control.require_matching(replies)
        update = known[self.program.update]
        if PENALTY in known:
            update = add_penalty(update, known[PENALTY], penalty_weight)
        if total is None:
            record = self._record(number, replies, penalty_weight)
        else:
            record = self._total_record(number, total, penalty_weight)
        if clipped:
            record[CLIPPED] = int(clipped)
        if isinstance(self.optimizer, Newton):
            self.optimizer.observe(record["train_loss"], known[HESSIAN][HESSIAN])
        self._update(number, update, norms)
        if total is None:
            record["norms"] = self.selection.bound.remember(norms, self.program.update)
            self._warn_of_long(number, norms[self.program.update])
        cosines = {silo: reply[COSINE] for silo, reply in replies.items() if COSINE in reply}
        if against := self.opposition.judge(cosines):
            record["against"] = against
        self.opposition.remember(update)
        record |= {key: dict(by_name) for key, by_name in measurements.items()}
        record["silos"] = self._silo_records(replies, norms.get(self.program.update, {}))
        self.silo_weights.learn({silo: reply["loss"] or 0.0 for silo, reply in replies.items()})
        members = replies if total is None else dict.fromkeys(total.silos)
        self.control.learn(number, known[CONTROL], members, len(self.silos))
        return record

    def _check_states(self, states: Mapping[str, int]) -> None:
        """Raise if a silo whose answer is to be summed used another control variate than the one in c."""
        self.control.require_matching({silo: {STATE_ROUND: state} for silo, state in states.items()})

    def _request(
        self,
        step: Step,
        number: int,
        silos: tuple[str, ...],
        known: Mapping[str, Mapping[str, Tensor]],
        numbers: Mapping[str, float],
    ) -> Request:
        """Return the request for a step: w, and the known tensors and numbers that the step sends."""
        tensors = {name: known[name] for name in step.sends}
        sent = {name: numbers[name] for name in step.sent_numbers}
        learnt = self.silo_weights.state()
        return Request(step.name, number, self.version, silos, self.weights, tensors, sent, learnt)

    def _ask(
        self, step: Step, request: Request
    ) -> tuple[dict[str, Aggregate], SiloNumbers, dict[str, Norms]]:
        """Ask silos for a step; raise if one is lost or an outlier.

        In order: send the request and add up each reply when it arrives, so that memory does not grow with
        the number of silos; add the sums of other processes; find lost silos and outliers; finalize the sums.

        Returns:
            The aggregate of each group of tensors, the rest of each silo's reply, and the norms by group.
        """
        direction = self.opposition.direction
        directions = {self.program.update: direction} if direction else {}
        strict = self.on_divergence == "stop"
        total = StepSums(step, self._like(step), self.silo_weights, strict, directions)
        for reply in self._checked(step, request):
            self._add(total, reply)
        found = self.runtime.combine(list(total.sums.values()), total.silo_numbers())
        missing = [silo for silo in request.silos if silo not in found]
        if missing:
            raise RepeatRoundError(missing)
        replies = {silo: found[silo] for silo in request.silos}
        norms = {name: self._norms(step, name, request, replies) for name in step.answers}
        aggregates = {name: rule.finalize(state) for name, (rule, state) in total.sums.items()}
        return aggregates, replies, norms

    def _like(self, step: Step) -> dict[str, Mapping[str, Tensor]]:
        """Return tensors like the aggregates of a step, on the device of w."""
        device = next(iter(self._parameters.values())).device
        return {
            name: self.weights
            if answer.like is self.program.weights
            else {key: torch.empty(t.shape, dtype=t.dtype, device=device) for key, t in answer.like.items()}
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

    def _add(self, total: StepSums, reply: Reply | AggregatedReply) -> None:
        """Add a reply; if it is infinite because w was extreme, name the silo that made w extreme."""
        try:
            total.add(reply)
        except NonFiniteError as error:
            named = self.selection.bound.past_suspect(self.silos)
            if named and self._is_extreme():
                raise DivergedError(
                    f"{error}; but the weights that it received were already extreme (norm "
                    f"{norm_of(self.weights):.3g}), and {silos_with_reasons(named)} stands out: start again "
                    "without it, or with a lower outlier_factor"
                ) from error
            raise

    def _norms(self, step: Step, name: str, request: Request, replies: SiloNumbers) -> Norms:
        """Return the norms of a group of tensors by silo; raise if some are outliers.

        If the runtime sets no silo aside, only infinite norms raise; others give one warning per silo.
        """
        norms = {silo: reply[NORMS][name] for silo, reply in replies.items()}
        outliers = self.selection.bound.outliers(name, norms, step.answers[name].cancels)
        aside = {s: why for s, why in outliers.items() if self.runtime.sets_aside or norms[s] == math.inf}
        named = self.selection.bound.past_suspect(norms) if aside and self._is_extreme() else {}
        if named and not named.keys() <= aside.keys():
            raise DivergedError(
                f"the weights were already extreme before round {request.round} (norm "
                f"{norm_of(self.weights):.3g}), so {silos_with_reasons(aside)} is not to blame; "
                f"{silos_with_reasons(named)} stands out: start again without it, or with a lower "
                "outlier_factor"
            )
        if aside:
            raise RepeatRoundError(aside, aside)
        new = {silo: reason for silo, reason in outliers.items() if silo not in self._warned}
        self._warned |= new.keys()
        if new and self.runtime.leads:
            warnings.warn(
                f"from round {request.round} on, {silos_with_reasons(new)} stands out, but still counts; if "
                "the model does not learn, standardise the inputs, lower the penalty, or set max_norm",
                FedILCWarning,
                stacklevel=2,
            )
        return norms

    @torch.no_grad()
    def _update(self, number: int, update: Mapping[str, Tensor], norms: Mapping[str, Norms]) -> None:
        """Take an optimiser step; undo it and raise if it leaves w or the optimiser infinite, or w extreme.

        Extreme weights would make the replies of honest silos infinite, and those silos would be blamed. So
        an update that makes w extreme is undone if a silo stands out. If all silos belong to whoever started
        the run, only infinities count, because nobody is blamed.
        """
        was_extreme = self._is_extreme()
        before = {name: tensor.clone() for name, tensor in self._updated().items()}
        for name, parameter in self._parameters.items():
            parameter.grad = update[name]  # after local steps, the aggregate of w - w_e in a gradient's place
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            # From the initial rate, not from that of the last round, which a resumed run does not know.
            group["lr"] = rate * self.rate.factor(number)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        named = {} if was_extreme else suspects(norms)
        named = named or self.selection.bound.past_suspect(norms.get(self.program.update, {}))
        # A finite update is not enough: squares in the optimiser's state, and w itself, may overflow.
        if not all(is_finite(tensor) for tensor in self._updated().values()):
            what = f"the update of round {number} made weights or optimiser infinite and was undone"
        elif self.runtime.sets_aside and named and self._is_extreme():
            what = (
                f"the update of round {number} made the weights extreme (norm {norm_of(self.weights):.3g}) "
                "and was undone"
            )
        else:
            self.version += 1
            return
        self._restore_updated(before)
        raise self._diverged(what, named)

    def _is_extreme(self) -> bool:
        """Return whether w has grown so far that extreme replies to it say nothing about who sends them."""
        return not norm_of(self.weights) <= self._extreme_norm

    def _diverged(self, what: str, named: Mapping[str, str]) -> Exception:
        """Return the error to raise after an update that was undone; `named` are silos that stand out."""
        if named and self.on_divergence == "exclude":
            return RepeatRoundError(named, named)
        if named:
            return DivergedError(
                f"{what}; {silos_with_reasons(named)} stands out: correct the problem there, or resume with "
                "on_divergence=exclude to continue without it"
            )
        return DivergedError(f"{what}; no silo stands out: lower the learning rate or the penalty")

    def _evaluate(self, number: int, silos: tuple[str, ...]) -> Record:
        """Return the metrics of each silo's validation set; silos that are lost have none."""
        step = self.program.steps[EVALUATE]
        request = self._request(step, number, silos, {}, {})
        if self.runtime.sums_only:
            metrics = self.runtime.total(request, {}, False, self._check_states).metrics
            means = {f"validation_{key}": value / count for key, (value, count) in metrics.items() if count}
            return {"validation": {}, **means}
        total = StepSums(step, {}, self.silo_weights)
        for reply in self._checked(step, request):
            total.add(reply)
        measured = {silo: reply for silo, reply in total.silo_numbers().items() if METRICS in reply}
        found = self.runtime.combine([], measured)
        return {"validation": {silo: found[silo][METRICS] for silo in silos if silo in found}}

    def _record(self, number: int, replies: SiloNumbers, penalty_weight: float) -> Record:
        """Return the round, the train loss and, if there is a penalty, L and lambda."""
        record: Record = {"round": number, "train_loss": self.silo_weights.mean_loss(replies)}
        if penalty_weight:
            distances = [reply["distance"] or 0.0 for reply in replies.values()]
            summed = self.program.penalty is not None and self.program.penalty.reduction == "sum"
            record["penalty"] = sum(distances) / len(distances) * (len(distances) if summed else 1)
            record["penalty_weight"] = penalty_weight
        return record

    def _total_record(self, number: int, total: TotalReply, penalty_weight: float) -> Record:
        """Return the same from sums, where no silo's own numbers are known."""
        record: Record = {"round": number, "train_loss": total.numbers["loss"] / total.weight}
        if penalty_weight:
            summed = self.program.penalty is not None and self.program.penalty.reduction == "sum"
            record["penalty"] = total.numbers["distance"] / (1 if summed else len(total.silos))
            record["penalty_weight"] = penalty_weight
        return record | {"members": len(total.silos), "examples": int(total.numbers["examples"])}

    def _silo_records(self, replies: SiloNumbers, norms: Norms) -> dict[str, dict[str, Any]]:
        """Return examples and loss per silo, and the norm of an update that was clipped."""
        max_norm, found = self.program.options.max_norm, dict[str, dict[str, Any]]()
        for silo, reply in replies.items():
            found[silo] = {"examples": reply["examples"], "train_loss": reply["loss"]}
            if max_norm is not None and norms[silo] > max_norm:
                found[silo]["clipped_from"] = norms[silo]
        return found

    def _warn_of_long(self, number: int, norms: Norms) -> None:
        """Warn of silos elsewhere whose updates are long in round after round; these updates still count.

        Updates that contain a penalty's terms, which nearly cancel, are long in honest silos, too.
        """
        if self.program.penalty is not None and self.program.algorithm.adds_up_in_silo:
            return
        long = self.selection.bound.note_long(norms)
        if long and self.runtime.sets_aside and self.runtime.leads:
            warnings.warn(
                f"round {number}: {silos_with_reasons(long)}; it still counts: look at its data, or set "
                "outlier_factor to 8 to set such updates aside",
                FedILCWarning,
                stacklevel=2,
            )

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that the next round depends on, for a checkpoint."""
        direction = _named(DIRECTION, self.opposition.direction)
        plain = _named(PLAIN, self.average.plain)
        return {**self._updated(), **plain, **_named(CONTROL, self.control.tensors), **direction}

    def _updated(self) -> dict[str, Tensor]:
        """Return what an update of w changes: w and the state of the optimiser."""
        return {**_named("weights", self.weights), **_named("optimizer", optimizer_tensors(self.optimizer))}

    def facts(self) -> dict[str, Any]:
        """Return everything else that the next round depends on, as a JSON object; it may be empty."""
        found = {
            "silo_weights": self.silo_weights.state(),
            "past_norms": self.selection.bound.past,
            "against": self.opposition.rounds,
            **self.control.facts(),
        }
        return {key: value for key, value in found.items() if value}

    def restore(
        self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], history: Sequence[Record]
    ) -> None:
        """Restore the state after the last round of a history from `tensors` and `facts` of then."""
        self._restore_updated(tensors)
        self.average.plain = tensors_below(tensors, PLAIN)
        self.control.restore(tensors_below(tensors, CONTROL), facts)
        self.silo_weights.restore(facts.get("silo_weights", {}))
        self.selection.bound.restore(history, facts.get("past_norms", {}))
        self.opposition = Opposition(tensors_below(tensors, DIRECTION), dict(facts.get("against", {})))
        self.version = len(history)

    @torch.no_grad()
    def _restore_updated(self, tensors: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(tensors[f"weights.{name}"])
        restore_optimizer(self.optimizer, tensors_below(tensors, "optimizer"))


@dataclass(frozen=True)
class SiloSelection:
    """Choose the silos of a round, and those with which it is repeated.

    If a silo is lost in any step, the whole round is repeated without it, because a penalty gradient without
    one silo's term would be wrong. The same happens if a reply is set aside as an outlier.

    Args:
        runtime: says which silos are present.
        bound: says which silos are left out of the rest of the run.
        options: `min_silos` says how many silos a round needs at least, `silos_per_round` how many are drawn
            at random, and `seed` which.
    """

    runtime: Runtime
    bound: NormBound
    options: Options

    def draw(self, number: int, aside: Mapping[str, str]) -> tuple[str, ...]:
        """Return the silos to ask in a round: all that are present, or `silos_per_round` of them.

        Silos that are left out of the run, or set `aside` in this round, are not among them. If silos are
        drawn, others take their places, so that without `min_silos` one silo is enough.
        """
        drawn = self.options.silos_per_round
        total = len(self.runtime.silos)
        excluded = self.bound.left_out | dict(aside)
        needed = self.options.quorum(total) if drawn is None else self.options.min_silos or 1
        if self.bound.left_out:
            self.runtime.set_aside(self.bound.left_out)
        present = tuple(silo for silo in self.runtime.present() if silo not in excluded)
        if excluded and len(present) < needed:
            raise SilosLostError(
                f"round {number} sets {silos_with_reasons(excluded)} aside, which leaves {len(present)} of "
                f"{total} silos, fewer than min_silos={needed}; correct the problem there and start again, "
                "or start with a lower min_silos or a larger outlier_factor"
            )
        if drawn is None or drawn >= len(present):
            return present
        random = numpy_generator(self.options.seed, number, "silos")
        chosen = sorted(random.choice(len(present), drawn, replace=False))
        return tuple(present[place] for place in chosen)

    def without(
        self, lost: RepeatRoundError, asked: tuple[str, ...], number: int, aside: dict[str, str]
    ) -> tuple[str, ...]:
        """Return the silos with which to repeat a round after some were lost; raise if too few are left.

        Silos whose replies are outliers are added to `aside`; with `silos_per_round`, silos are then drawn
        again from the others.
        """
        reasons = self.bound.strike(lost.reasons)
        aside |= reasons
        if reasons:
            self.runtime.set_aside(reasons, number)
            if self.options.silos_per_round is not None:
                return self.draw(number, aside)
        total = len(self.runtime.silos)
        left = tuple(silo for silo in asked if silo not in lost.silos)
        needed = self.options.quorum(total)
        if len(left) >= needed and left:
            return left
        too_few = f"which leaves {len(left)} of {total} silos, fewer than min_silos={needed}"
        if reasons:
            raise SilosLostError(
                f"round {number} sets {silos_with_reasons(reasons)} aside, {too_few}; correct the "
                "problem there and resume, or start again with a lower min_silos or a larger outlier_factor"
            )
        known = self.runtime.reasons(lost.silos)
        names = [f"{silo} ({known[silo]})" if silo in known else silo for silo in lost.silos]
        raise SilosLostError(
            f"round {number} lost {', '.join(names)}, {too_few}; bring them back or lower min_silos"
        )


class WithoutPenaltyError(Exception):
    """A silo was removed for good after the statistic was summed, so that it cannot be summed again.

    The update of the round is then made over the other `silos`, and without the penalty.
    """

    def __init__(self, silos: Iterable[str], sentence: str) -> None:
        super().__init__(sentence)
        self.silos = tuple(silos)


class RepeatRoundError(Exception):
    """Silos without which the round is repeated: they did not reply, or are set aside for a reason."""

    def __init__(self, silos: Iterable[str], reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(", ".join(silos))
        self.silos = tuple(silos)
        self.reasons = dict(reasons or {})


def _named(group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{group}.{name}": tensor for name, tensor in tensors.items()}
