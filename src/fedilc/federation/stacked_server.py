"""Run rounds of a stack: many models of one shape, each with its own settings, silos and optimiser state.

This is `server.py` for a row per model: one request carries the weights of all of them, replies are added to
the rows of their models by the same exact sums, and optimisers work on rows with the same settings at once.
A model whose numbers become infinite fails with the sentence of its own run; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedilc.aggregation.base import not_finite
from fedilc.config import Options
from fedilc.errors import ConfigError, DivergedError, silos_with_reasons
from fedilc.federation.averaging import DECAY, SHARE, WeightAverage
from fedilc.federation.outliers import NormBound, suspects
from fedilc.federation.program import CONTROL, HESSIAN, PENALTY, PENALTY_WEIGHT, Program
from fedilc.federation.server import EXTREME
from fedilc.federation.stacked_client import StackedReply, StackedRequest
from fedilc.federation.stacked_sums import LOSS, Heard, Norms, StackedSums, batches, lengths_of, of_place
from fedilc.federation.step_sums import Examples, Given, SiloWeights
from fedilc.gradients.newton import Newton, packed
from fedilc.gradients.penalty_weight import PenaltySchedule
from fedilc.gradients.stacked import StackedNetwork
from fedilc.optimizers.optimizers import LayerAdam, RateSchedule, make_optimizer

_ALONE = ("adafactor",)  # optimisers whose step for one coordinate depends on all others of its model
BY_TENSOR = (*_ALONE, "layeradam")  # or on those of its tensor

_STATIC = (SiloWeights, Examples, Given)  # weights of silos that do not depend on a reply's loss

Ask = Callable[[StackedRequest], Iterator[StackedReply]]


@dataclass
class Member:
    """One model of a stack: its settings, silos, first weights, and what its rounds recorded.

    Attributes:
        failed: why it has no result.
        converged: whether Newton's method has found the minimum.
        losses: mean training loss by round.
        agreement: agreement of signs by round and parameter.
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
        self._learns = any(type(member.silo_weights) not in _STATIC for member in members)
        self._static: dict[tuple[str, int], Tensor] = {}
        self._past: list[Norms] = []  # of the update, by round
        self._extreme = EXTREME * lengths_of(self.weights).clamp(min=1.0)
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
        heard = Heard(len(self.members))
        for step in steps:
            tensors = {name: known[name] for name in step.sends}
            request = StackedRequest(step.name, number, self.weights, tensors, numbers, self.counts)
            sums = {
                name: StackedSums(answer.aggregator, self.like(name, answer.like), answer.weighted)
                for name, answer in step.answers.items()
            }
            for replies in batches(ask(request)):
                self._add(replies, step.answers, sums, heard)
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
        self._record(heard, signs)
        if self._newton:
            self._newton_steps(update, known[HESSIAN])
        else:
            self._update(number, update, heard)
        self._past.append(heard.norms.get(self.program.update, []))
        for place in sorted(self.alive) if self._learns else ():
            self.members[place].silo_weights.learn(heard.losses_of(place))
        if self.control is not None:
            self.control += known[CONTROL]
        self._enter(number)

    def _record(self, heard: Heard, signs: Tensor | None) -> None:
        """Add the mean loss of the round to the records, and how far signs agreed."""
        losses = (heard.loss / heard.weight).tolist()
        agreed = None if signs is None else signs.tolist()
        for place in self.alive:
            member = self.members[place]
            member.losses.append(losses[place])
            if agreed is not None:
                member.agreement.append(dict(zip(self.network.sizes, agreed[place], strict=True)))

    def like(self, name: str, like: Mapping[str, Tensor]) -> Tensor:
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
        replies: Sequence[StackedReply],
        answers: Mapping[str, Any],
        sums: Mapping[str, StackedSums],
        heard: Heard,
    ) -> None:
        """Add replies to the rows of their models; a model with a NaN or an infinity in them fails."""
        rows = torch.cat([reply.places for reply in replies])
        tensors = {name: torch.cat([one.tensors[name] for one in replies]) for name in replies[0].tensors}
        lengths = {name: lengths_of(values) for name, values in tensors.items()}
        fine = torch.stack([torch.isfinite(length) for length in lengths.values()]).all(0)
        if not fine.all():
            self._fail_from(replies)
        left = torch.zeros(len(self.members), dtype=torch.bool)
        left[list(self.alive)] = True
        fine &= left[rows]
        weights = torch.cat([self._silo_weights(reply) for reply in replies])
        if LOSS in replies[0].numbers:
            heard.add_losses(replies, rows, weights)
        for name, length in lengths.items():
            heard.add_norms(name, replies, length.sqrt() if answers[name].order == 2 else length)
            given = None if sums[name].weights is None else weights
            if fine.all():
                sums[name].add(rows, tensors[name], length, given)
            else:
                given = None if given is None else given[fine]
                sums[name].add(rows[fine], tensors[name][fine], length[fine], given)

    def _silo_weights(self, reply: StackedReply) -> Tensor:
        """Return the weight of a silo's reply in each of its models."""
        numbers: dict[str, Any] = {"examples": reply.examples, LOSS: None}
        if self._learns:
            losses = reply.numbers.get(LOSS, torch.zeros(len(reply.places))).tolist()
            each = [
                self.members[place].silo_weights.of(reply.silo, {**numbers, LOSS: loss})
                for place, loss in zip(reply.places.tolist(), losses, strict=True)
            ]
            return torch.tensor([1.0 if one is None else one for one in each], dtype=torch.float64)
        key = (reply.silo, reply.examples)
        if key not in self._static:
            found = [
                member.silo_weights.of(reply.silo, numbers) if reply.silo in member.silos else None
                for member in self.members
            ]
            self._static[key] = torch.tensor(
                [1.0 if one is None else one for one in found], dtype=torch.float64
            )
        return self._static[key][reply.places]

    def _bound(self, place: int) -> NormBound:
        """Return the norms of a model's updates in the rounds before, as its own run would remember them."""
        found, update = NormBound(self.members[place].options.outlier_factor), self.program.update
        for parts in self._past:
            norms = of_place(parts, place)
            if norms:
                found.remember({update: norms}, update)
        return found

    def _fail_from(self, replies: Sequence[StackedReply]) -> None:
        """Let models fail because of a NaN or an infinity in a silo's reply."""
        for reply in replies:
            for name, values in reply.tensors.items():
                for row in torch.nonzero(~torch.isfinite(lengths_of(values)))[:, 0].tolist():
                    if int(reply.places[row]) in self.alive:
                        self._fail_because(reply, name, row)

    def _fail_because(self, reply: StackedReply, name: str, row: int) -> None:
        """Let the model of one row fail."""
        place = int(reply.places[row])
        values = reply.tensors[name][row]
        key = name
        if values.numel() == self.network.size:
            by_name = self.network.by_name(values)
            key = next((key for key, value in by_name.items() if not torch.isfinite(value).all()), name)
        error = not_finite(f"silo {reply.silo!r}", key)
        named = self._bound(place).past_suspect(self.members[place].silos)
        length = float(lengths_of(self.weights[place : place + 1]))
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
    def _update(self, number: int, update: Tensor, heard: Heard) -> None:
        """Take an optimiser step with the rows of each group; models that it leaves infinite fail."""
        was_extreme = ~(lengths_of(self.weights) <= self._extreme)
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
                        fine = torch.isfinite(part.sum(1))
                        if not fine.all():  # a sum may be infinite although its terms are not
                            fine |= torch.isfinite(part).all(1)
                        finite[rows] &= fine
        for place in torch.nonzero(~finite)[:, 0].tolist():
            if place not in self.alive:
                continue
            found = {name: of_place(parts, place) for name, parts in heard.norms.items()}
            named = {} if was_extreme[place] else suspects(found)
            named = named or self._bound(place).past_suspect(found[self.program.update])
            what = f"the update of round {number} made weights or optimiser infinite and was undone"
            if named:
                self._fail(
                    place,
                    f"{what}; {silos_with_reasons(named)} stands out: correct the problem there, "
                    "or resume with on_divergence=exclude to continue without it",
                )
            else:
                self._fail(place, f"{what}; no silo stands out: lower the learning rate or the penalty")
        ended = sorted(set(range(len(self.members))) - self.alive)
        if ended:
            self.weights[ended] = self.weights[ended].nan_to_num(0.0, 0.0, 0.0)

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
        return self.program.algorithm.optimizer in BY_TENSOR

    def _parameters(self, matrix: Tensor, rows: slice) -> list[Tensor]:
        """Return what one optimiser moves, of weights or their update: rows, or the tensors of models."""
        if not self._by_tensor:
            return [matrix[rows]]
        model = self.members[rows.start].model
        if self.program.algorithm.optimizer in _ALONE:
            return self.network.views(model, matrix[rows.start])
        return self.network.views(model, matrix[rows])

    def _groups(self) -> Iterator[tuple[slice, torch.optim.Optimizer, RateSchedule]]:
        """Yield the optimiser of rows with equal settings; its parameters share their memory."""
        name, start = str(self.program.algorithm.optimizer), 0
        keys = [optimizer_key(member, name) for member in self.members]
        while start < len(self.members):
            stop = start + 1
            while stop < len(self.members) and keys[stop] == keys[start] and name not in _ALONE:
                stop += 1
            member, rows = self.members[start], slice(start, stop)
            options = member.options
            optimizer = make_optimizer(
                name,
                [nn.Parameter(one) for one in self._parameters(self.weights, rows)],
                options.learning_rate,
                options.weight_decay,
                member.optimizer_options,
            )
            if isinstance(optimizer, LayerAdam):
                optimizer.stacked = True
            for group in optimizer.param_groups:
                group["initial"] = group["lr"]
            yield rows, optimizer, _schedule(options)
            start = stop


def optimizer_key(member: Member, optimizer: str) -> tuple[Any, ...]:
    """Return what an optimiser and its schedule are made of, besides the algorithm."""
    options = member.options
    shapes = [tuple(one.shape) for one in member.model.parameters()] if optimizer in BY_TENSOR else []
    return (
        options.learning_rate,
        options.weight_decay,
        repr(sorted(member.optimizer_options.items())),
        _schedule(options),
        repr(shapes),
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
