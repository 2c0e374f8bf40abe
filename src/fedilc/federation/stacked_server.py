"""Run rounds of a stack: many models of one shape, each with its own settings, silos and optimiser state.

This is `server.py` for a row per model: one request carries the weights of all of them, replies are added to
the rows of their models by the same exact sums, and optimisers work on rows with the same settings at once.
A model whose numbers become infinite fails with the sentence of its own run; the others go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedilc.aggregation import (
    AbsoluteGeometricMean,
    Aggregator,
    Clipped,
    Mean,
    Sum,
    WeightedGeometricMean,
)
from fedilc.aggregation.base import not_finite
from fedilc.aggregation.exact_sum import ExactSum
from fedilc.aggregation.packed_sums import Sums
from fedilc.aggregation.signed_logs import SignedLogs
from fedilc.config import Options
from fedilc.errors import ConfigError, DivergedError, silos_with_reasons
from fedilc.federation.averaging import DECAY, SHARE, WeightAverage
from fedilc.federation.outliers import NormBound, suspects
from fedilc.federation.program import CONTROL, HESSIAN, PENALTY, PENALTY_WEIGHT, Program
from fedilc.federation.server import EXTREME
from fedilc.federation.stacked_client import StackedReply, StackedRequest
from fedilc.federation.step_sums import SiloWeights
from fedilc.gradients.newton import Newton, packed
from fedilc.gradients.penalty_weight import PenaltySchedule
from fedilc.gradients.stacked import ALL, StackedNetwork
from fedilc.optimizers.optimizers import RateSchedule, make_optimizer

_BY_TENSOR = ("adafactor", "layeradam")  # optimisers whose step for one coordinate depends on the others
_BY_COORDINATE = (Mean, Sum, WeightedGeometricMean, AbsoluteGeometricMean)

Ask = Callable[[StackedRequest], Iterator[StackedReply]]


class StackedSums:
    """The sums of one group of tensors, a row per model; each row has its own number of silos.

    Args:
        aggregator: how replies are aggregated.
        like: a tensor of the shape and dtype of the group, without storage.
        weighted: whether replies have weights.
    """

    def __init__(self, aggregator: Aggregator, like: Tensor, weighted: bool) -> None:
        self.inner = aggregator.inner if isinstance(aggregator, Clipped) else aggregator
        self.most = aggregator.max_norm
        self.like = like
        self.counts = torch.zeros(len(like), dtype=torch.int64)
        self.weights = ExactSum(torch.Size((len(like), 1)), torch.device("cpu")) if weighted else None
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.state: Sums | None = None
        if not self.inner.keeps_values:
            self.state = self.inner.zero({ALL: like})

    def add(self, places: Tensor, values: Tensor, norms: Tensor, weights: Tensor | None, source: str) -> None:
        """Add the values of some rows, which are finite; longer ones are scaled down to the largest norm."""
        if not len(places):
            return
        if self.most < math.inf:
            factors = (self.most / norms).clamp(max=1.0).to(values).unsqueeze(1)
            values = torch.where(norms.unsqueeze(1) > self.most, values * factors, values)
        self.counts[places] += 1
        if self.state is None:
            self.kept.append((places, values))
            return
        if weights is not None and self.weights is not None:
            self.weights.add(weights.unsqueeze(1), places)
            values = values.double() * weights.unsqueeze(1)
        self.inner._add(self.state, ALL, values, source, places)

    def finish(self, slices: Sequence[slice], members: Tensor) -> Tensor:
        """Return the aggregate of each row.

        Args:
            slices: where each parameter is in a row.
            members: which coordinates each model has (rows, parameters).
        """
        if self.state is None:
            return self._of_kept()
        counts = self.counts.clamp(min=1).double().unsqueeze(1)
        if self.weights is not None:
            counts = self.weights.total()
            counts = torch.where(counts > 0, counts, 1.0)
        sums = self._sums()
        if type(self.inner) in _BY_COORDINATE and not getattr(self.inner, "agreement", 0.0):
            result = self.inner.finish(counts, sums)[0]  # type: ignore[arg-type]  # a count per row
            return result.to(self.like.dtype)
        return self._row_by_row(counts, sums, slices, members)

    def agreement(self, slices: Sequence[slice], members: Tensor) -> Tensor | None:
        """Return how far signs agree by model and parameter, if the rule counts signs."""
        if self.state is None or not isinstance(self.inner, WeightedGeometricMean):
            return None
        sums = self._sums()
        margin = (sums["positives"] - sums["negatives"]).abs()
        totals = torch.stack([margin[:, part].sum(1) for part in slices], 1)
        sizes = torch.stack([members[:, part].sum(1) for part in slices], 1)
        return totals / (self.counts.clamp(min=1).unsqueeze(1) * sizes.clamp(min=1))

    def _sums(self) -> dict[str, Tensor]:
        assert self.state is not None
        sums: dict[str, Tensor] = {}
        for key, part in self.state.sums[ALL].items():
            if isinstance(part, SignedLogs):
                (sums["positives"], sums["negatives"]), logs = part.counts_and_logs()
                sums["log_positive"], sums["log_negative"] = logs
            else:
                sums[key] = part.total()
        return sums

    def _row_by_row(
        self, counts: Tensor, sums: Mapping[str, Tensor], slices: Sequence[slice], members: Tensor
    ) -> Tensor:
        """Return the aggregates of a rule that looks at a whole parameter, one model after another."""
        out = torch.zeros(self.like.shape, dtype=self.like.dtype)
        for row, count in enumerate(counts[:, 0].tolist()):
            for part in slices:
                own = members[row, part]
                result, _ = self.inner.finish(
                    count, {key: value[row, part][own] for key, value in sums.items()}
                )
                out[row, part].masked_scatter_(own, result.to(out.dtype))
        return out

    def _of_kept(self) -> Tensor:
        """Return the aggregates of a rule that keeps values: together for models with the same silos."""
        out = torch.zeros(self.like.shape, dtype=self.like.dtype)
        where: dict[int, list[tuple[int, int]]] = {}
        for number, (places, _) in enumerate(self.kept):
            for row, place in enumerate(places.tolist()):
                where.setdefault(place, []).append((number, row))
        alike: dict[tuple[int, ...], list[int]] = {}
        for place, found in where.items():
            alike.setdefault(tuple(number for number, _ in found), []).append(place)
        for numbers, rows in alike.items():
            state = self.inner.zero({ALL: self.like[rows]})
            for position, number in enumerate(numbers):
                chosen = [where[place][position][1] for place in rows]
                self.inner.accumulate(state, {ALL: self.kept[number][1][chosen]})
            out[rows] = self.inner.finalize(state).value[ALL]
        return out


@dataclass
class Member:
    """One model of a stack: its settings, silos, first weights, and what its rounds recorded.

    Attributes:
        failed: why it has no result.
        converged: whether Newton's method has found the minimum.
        losses: mean training loss by round.
        agreement: agreement of signs by round and parameter.
        norms: norms of each round by group and silo, of which a failure names those that stand out.
    """

    name: str
    options: Options
    silos: tuple[str, ...]
    model: nn.Module
    optimizer_options: Mapping[str, Any]
    silo_weights: SiloWeights
    failed: str | None = None
    converged: bool = False
    losses: list[float] = field(default_factory=list)
    agreement: list[dict[str, float]] = field(default_factory=list)
    norms: dict[str, dict[str, float]] = field(default_factory=dict)


class StackedServer:
    """Hold the weights and optimisers of a stack, and run its rounds.

    Members with equal settings of the optimiser follow one another, and share one, unless its step for one
    coordinate depends on the others.
    """

    def __init__(self, members: Sequence[Member], network: StackedNetwork, program: Program) -> None:
        self.members, self.network, self.program = members, network, program
        self.weights = torch.stack([network.row(member.model) for member in members])
        self.own = torch.stack([network.members(member.model) for member in members])
        self.counts = torch.tensor([len(member.silos) for member in members])
        self.alive = set(range(len(members)))
        self.control = torch.zeros_like(self.weights) if program.keeps_state else None
        self.averages = [_average(member, program) for member in members]
        self.averaged = self.weights.clone() if any(one.kind for one in self.averages) else None
        self.bounds = [NormBound(member.options.outlier_factor) for member in members]
        self._extreme = EXTREME * _norms(self.weights).clamp(min=1.0)
        self._newton = [_newton(member) for member in members] if program.algorithm.is_newton else []
        self._optimizers = [] if self._newton else list(self._groups())
        ends = torch.tensor([size.numel() for size in network.sizes.values()]).cumsum(0).tolist()
        self.slices = [slice(start, stop) for start, stop in zip([0, *ends[:-1]], ends, strict=True)]

    @property
    def shown(self) -> Tensor:
        """Return the weights that are evaluated and returned: the average over rounds, if there is one."""
        return self.weights if self.averaged is None else self.averaged

    def round(self, number: int, ask: Ask) -> None:
        """Run one round of all models that are neither finished nor failed."""
        numbers: dict[str, Tensor] = {}
        signs = None
        steps = self.program.round(0.0)
        if self.program.penalty is not None:
            at = [_penalty_weight(member.options, number) for member in self.members]
            numbers[PENALTY_WEIGHT] = torch.tensor(at, dtype=torch.float64)
            steps = self.program.round(max(at))
        known: dict[str, Tensor] = {} if self.control is None else {CONTROL: self.control}
        replies: dict[int, dict[str, dict[str, float]]] = {}
        norms: dict[int, dict[str, dict[str, float]]] = {}
        for step in steps:
            tensors = {name: known[name] for name in step.sends}
            request = StackedRequest(step.name, number, self.weights, tensors, numbers, self.counts)
            sums = {
                name: StackedSums(answer.aggregator, self._like(name, answer.like), answer.weighted)
                for name, answer in step.answers.items()
            }
            for reply in ask(request):
                self._add(reply, step.answers, sums, replies, norms)
            for name, total in sums.items():
                slices = self.slices if total.like.shape == self.weights.shape else [slice(None)]
                own = (
                    self.own
                    if total.like.shape == self.weights.shape
                    else torch.ones(total.like.shape, dtype=torch.bool)
                )
                known[name] = total.finish(slices, own)
                if name == self.program.update:
                    signs = total.agreement(slices, own)
        update = known[self.program.update]
        if not self._newton:
            update = update.masked_fill(~self.own, 0.0)
        if PENALTY in known:
            update = update + numbers[PENALTY_WEIGHT].to(update).unsqueeze(1) * known[PENALTY]
        for place in sorted(self.alive):
            member = self.members[place]
            member.losses.append(member.silo_weights.mean_loss(replies[place]))
            if signs is not None:
                by_name = zip(self.network.sizes, signs[place].tolist(), strict=True)
                member.agreement.append(dict(by_name))
        if self._newton:
            self._newton_steps(update, known[HESSIAN])
        else:
            self._update(number, update, norms)
        for place in sorted(self.alive):
            self.bounds[place].remember(norms[place], self.program.update)
            member = self.members[place]
            member.silo_weights.learn({silo: found["loss"] for silo, found in replies[place].items()})
        if self.control is not None:
            self.control += known[CONTROL]
        self._enter(number)

    def _like(self, name: str, like: Mapping[str, Tensor]) -> Tensor:
        """Return a tensor of the shape of a group, a row per model, without storage."""
        if name == HESSIAN:
            size = self.network.size
            return torch.empty(len(self.members), size * size, dtype=self.weights.dtype, device="cpu")
        if like is self.program.weights:
            return self.weights
        (one,) = like.values()
        return torch.empty(len(self.members), one.numel(), dtype=one.dtype)

    def _add(
        self,
        reply: StackedReply,
        answers: Mapping[str, Any],
        sums: Mapping[str, StackedSums],
        replies: dict[int, dict[str, dict[str, float]]],
        norms: dict[int, dict[str, dict[str, float]]],
    ) -> None:
        """Add a reply to the rows of its models; a model with a NaN or an infinity in it fails."""
        rows, places = reply.places, reply.places.tolist()
        found = {name: _norms(values) for name, values in reply.tensors.items()}
        fine = torch.ones(len(rows), dtype=torch.bool)
        for name, lengths in found.items():
            finite = torch.isfinite(lengths)
            for row in torch.nonzero(~finite)[:, 0].tolist():
                self._fail_from(reply, name, row)
            fine &= finite
        fine &= torch.tensor([place in self.alive for place in places])
        losses = reply.numbers.get("loss")
        if losses is not None:
            for place, loss in zip(places, losses.tolist(), strict=True):
                replies.setdefault(place, {})[reply.silo] = {"loss": loss, "examples": reply.examples}
        for name, lengths in found.items():
            order, total = answers[name].order, sums[name]
            rooted = lengths.sqrt() if order == 2 else lengths
            for place, length in zip(places, rooted.tolist(), strict=True):
                norms.setdefault(place, {}).setdefault(name, {})[reply.silo] = length
            weights = None
            if total.weights is not None:
                each = [
                    self.members[place].silo_weights.of(reply.silo, replies[place][reply.silo])
                    for place in places
                ]
                weights = torch.tensor([1.0 if one is None else one for one in each], dtype=torch.float64)
            values = reply.tensors[name]
            if fine.all():
                total.add(rows, values, lengths, weights, f"silo {reply.silo!r}")
            else:
                weights = None if weights is None else weights[fine]
                total.add(rows[fine], values[fine], lengths[fine], weights, f"silo {reply.silo!r}")

    def _fail_from(self, reply: StackedReply, name: str, row: int) -> None:
        """Let a model fail because of a NaN or an infinity in a silo's reply."""
        place = int(reply.places[row])
        if place not in self.alive:
            return
        values = reply.tensors[name][row]
        key = name
        if values.numel() == self.network.size:
            by_name = self.network.by_name(values)
            key = next((key for key, value in by_name.items() if not torch.isfinite(value).all()), name)
        error = not_finite(f"silo {reply.silo!r}", key)
        named = self.bounds[place].past_suspect(self.members[place].silos)
        length = float(_norms(self.weights[place : place + 1]))
        if named and length > float(self._extreme[place]):
            self._fail(
                place,
                f"{error}; but the weights that it received were already extreme (norm {length:.3g}), and "
                f"{silos_with_reasons(named)} stands out: start again "
                "without it, or with a lower outlier_factor",
            )
            return
        self._fail(place, str(error))

    def _fail(self, place: int, sentence: str) -> None:
        self.members[place].failed = sentence
        self.alive.discard(place)

    @torch.no_grad()
    def _update(self, number: int, update: Tensor, norms: Mapping[int, Mapping[str, Any]]) -> None:
        """Take an optimiser step with the rows of each group; models that it leaves infinite fail."""
        was_extreme = ~(_norms(self.weights) <= self._extreme)
        finite = torch.ones(len(self.members), dtype=torch.bool)
        for rows, optimizer, rate in self._optimizers:
            if self.alive.isdisjoint(range(rows.start, rows.stop)):
                continue
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            for parameter, gradient in zip(parameters, self._parameters(update, rows), strict=True):
                parameter.grad = gradient
            for group in optimizer.param_groups:
                group["lr"] = group["initial"] * rate.factor(number)
            optimizer.step()
            count = rows.stop - rows.start
            for parameter in parameters:
                parameter.grad = None
                for tensor in (parameter.detach(), *optimizer.state[parameter].values()):
                    if isinstance(tensor, Tensor) and tensor.numel() >= count:  # not a number of steps
                        part = tensor.reshape(count, -1)
                        finite[rows] &= torch.isfinite(part.sum(1)) | torch.isfinite(part).all(1)
        for place in torch.nonzero(~finite)[:, 0].tolist():
            if place not in self.alive:
                continue
            found = norms[place]
            named = {} if was_extreme[place] else suspects(found)
            named = named or self.bounds[place].past_suspect(found[self.program.update])
            what = f"the update of round {number} made weights or optimiser infinite and was undone"
            if named:
                self._fail(
                    place,
                    f"{what}; {silos_with_reasons(named)} stands out: correct the problem there, "
                    "or resume with on_divergence=exclude to continue without it",
                )
            else:
                self._fail(place, f"{what}; no silo stands out: lower the learning rate or the penalty")
        for place in set(range(len(self.members))) - self.alive:
            self.weights[place].nan_to_num_(0.0, 0.0, 0.0)

    @torch.no_grad()
    def _newton_steps(self, gradient: Tensor, hessian: Tensor) -> None:
        size = self.network.size
        for place in sorted(self.alive):
            member, own = self.members[place], self.own[place]
            optimizer, (weight, bias) = self._newton[place]
            order = torch.nonzero(own)[:, 0]
            matrix = hessian[place].view(size, size)[order][:, order]
            slope = gradient[place][order]
            weight.grad, bias.grad = slope[:-1].view_as(weight), slope[-1:]
            optimizer.observe(member.losses[-1], packed(matrix))
            try:
                optimizer.step()
            except (ConfigError, DivergedError) as error:
                self._fail(place, str(error))
                continue
            self.weights[place][order] = torch.cat([weight.detach().flatten(), bias.detach()])
            member.converged = optimizer.converged

    @torch.no_grad()
    def _enter(self, number: int) -> None:
        """Update the averages over rounds."""
        if self.averaged is not None:
            rates = torch.tensor(
                [average.rate(number) for average in self.averages], dtype=self.weights.dtype
            )
            column = rates.unsqueeze(1)
            moved = self.averaged + (self.weights - self.averaged) * column
            self.averaged = torch.where(column == 1, self.weights, moved)

    @property
    def _by_tensor(self) -> bool:
        return self.program.algorithm.optimizer in _BY_TENSOR

    def _parameters(self, matrix: Tensor, rows: slice) -> list[Tensor]:
        """Return what one optimiser moves, of weights or their update: rows, or the tensors of a model."""
        if not self._by_tensor:
            return [matrix[rows]]
        return self.network.views(self.members[rows.start].model, matrix[rows.start])

    def _groups(self) -> Iterator[tuple[slice, torch.optim.Optimizer, RateSchedule]]:
        """Yield the optimiser of rows with equal settings; its parameters share their memory."""
        start = 0
        while start < len(self.members):
            first, stop = optimizer_key(self.members[start]), start + 1
            while (
                not self._by_tensor
                and stop < len(self.members)
                and optimizer_key(self.members[stop]) == first
            ):
                stop += 1
            member, rows = self.members[start], slice(start, stop)
            options = member.options
            optimizer = make_optimizer(
                str(self.program.algorithm.optimizer),
                [nn.Parameter(one) for one in self._parameters(self.weights, rows)],
                options.learning_rate,
                options.weight_decay,
                member.optimizer_options,
            )
            for group in optimizer.param_groups:
                group["initial"] = group["lr"]
            yield rows, optimizer, _schedule(options)
            start = stop


def optimizer_key(member: Member) -> tuple[Any, ...]:
    """Return what an optimiser and its schedule are made of, besides the algorithm."""
    options = member.options
    return (
        options.learning_rate,
        options.weight_decay,
        repr(sorted(member.optimizer_options.items())),
        _schedule(options),
    )


def _schedule(options: Options) -> RateSchedule:
    kind = options.learning_rate_schedule
    rounds = options.rounds if kind != "constant" else 1
    return RateSchedule(kind, rounds, options.warmup_rounds, options.decay_rounds, options.decay_factor)


def _average(member: Member, program: Program) -> WeightAverage:
    options = member.options
    return WeightAverage(
        None if program.algorithm.is_newton else options.average,
        options.rounds,
        options.average_decay or DECAY,
        options.average_share or SHARE,
    )


def _penalty_weight(options: Options, number: int) -> float:
    schedule = PenaltySchedule(options.penalty_weight, options.penalty_anneal_rounds, options.penalty_start)
    return schedule.at(number)


def _newton(member: Member) -> tuple[Newton, list[nn.Parameter]]:
    parameters = list(member.model.parameters())
    return Newton(parameters, weight_decay=member.options.weight_decay), parameters


def _norms(rows: Tensor) -> Tensor:
    """Return the Euclidean norm of each row, in float64."""
    found: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return found
