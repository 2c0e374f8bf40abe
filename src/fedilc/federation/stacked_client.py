"""Compute a silo's reply for all models of a stack: the silo's side of `stacked_server.py`.

A request carries the weights of all models, one row each, and what the step sends besides them; a reply has
the rows of those models that this silo trains. A silo computes alone, as it would over a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedilc.aggregation import Mean
from fedilc.aggregation.base import wide_dtype
from fedilc.federation.program import (
    CONTROL,
    HESSIAN,
    MATCHED,
    PENALTY,
    PENALTY_WEIGHT,
    STATISTICS,
    Program,
)
from fedilc.gradients import Loss
from fedilc.gradients.stacked import StackedComputed, StackedNetwork, StackedSilo

CHUNK_BYTES = 16 << 20  # of one forward pass: of models that compute together
SHARED_BYTES = 1 << 20  # larger tables are never copied: models of different tables compute apart


@dataclass(frozen=True)
class StackedRequest:
    """A request for one step of a round, for all models of a stack.

    Args:
        step: name of the step.
        round: number of the round.
        weights: w of each model (models, parameters).
        tensors: what the step sends besides w, by group, a row per model.
        numbers: numbers that the step sends, one per model.
        counts: number of silos of each model.
    """

    step: str
    round: int
    weights: Tensor
    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, Tensor]
    counts: Tensor


@dataclass
class StackedReply:
    """One silo's reply for some models: `places` are their rows, and those of its tensors and numbers."""

    silo: str
    places: Tensor
    examples: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Examples:
    """One model's training examples at a silo; `x` may be the very tensor of another model."""

    place: int
    seed: int
    rate: float
    x: Tensor
    y: Tensor


class StackedClient:
    """One silo of a stack: the examples of each model that it trains, and the program they share.

    Args:
        name: of the silo.
        network: runs the models.
        program: of the first model; those of the others differ in numbers only.
        loss: of the models.
        examples: of each model.
        models: number of models in the stack, with those that other silos train.
        dtype: of the weights.
    """

    def __init__(
        self,
        name: str,
        network: StackedNetwork,
        program: Program,
        loss: Loss,
        examples: Sequence[Examples],
        models: int,
        dtype: torch.dtype,
    ) -> None:
        self.name, self.network, self.program, self.loss, self.dtype = name, network, program, loss, dtype
        self.examples = examples
        self.control: Tensor | None = None
        if program.keeps_state:
            self.control = torch.zeros(models, network.size, dtype=dtype)
        self.use({one.place for one in examples})

    def use(self, alive: set[int]) -> None:
        """Compute for these models only; those with as many examples compute together."""
        left = [one for one in self.examples if one.place in alive]
        self.parts: list[tuple[Tensor, list[float], StackedSilo]] = []
        tables = {id(one.x): number for number, one in reversed(list(enumerate(left)))}
        left.sort(key=lambda one: (len(one.y), tables[id(one.x)], one.place))
        width = sum(layer.shape[0] + layer.shape[1] for layer in self.network.layers)
        start = 0
        while start < len(left):
            first = left[start]
            count = len(first.y)
            most = max(1, CHUNK_BYTES // (2 * count * width * self.dtype.itemsize))
            stop = start + 1
            shares = count * first.x.shape[1] * self.dtype.itemsize > SHARED_BYTES
            while (
                stop < len(left)
                and stop - start < most
                and len(left[stop].y) == count
                and not (shares and left[stop].x is not first.x)
            ):
                stop += 1
            self.parts.append(self._part(left[start:stop]))
            start = stop

    def _part(self, members: Sequence[Examples]) -> tuple[Tensor, list[float], StackedSilo]:
        options, program = self.program.options, self.program
        size = options.environment_size if program.intra is not None else None
        votes = size is not None and not isinstance(program.intra, Mean)
        distinct = {id(one.x): one.x for one in members}
        if len(distinct) == 1:
            whole = self.network.widened(members[0].x, self.dtype)
            x = whole.unsqueeze(0).expand(len(members), *whole.shape)
        else:
            wide = {key: self.network.widened(table, self.dtype) for key, table in distinct.items()}
            x = torch.stack([wide[id(one.x)] for one in members])
        y = torch.stack([self.loss.labels(one.y, self.dtype) for one in members])
        silo = StackedSilo(
            self.network,
            self.name,
            x,
            y,
            [one.seed for one in members],
            self.loss,
            size,
            program.intra if votes else None,
            program.penalty,
        )
        return torch.tensor([one.place for one in members]), [one.rate for one in members], silo

    def answer(self, request: StackedRequest) -> Iterator[StackedReply]:
        """Yield the reply for each group of models that compute together."""
        for places, rates, silo in self.parts:
            weights, round_ = request.weights[places], request.round
            reply = StackedReply(self.name, places, silo.examples)
            if request.step == STATISTICS:
                assert self.program.penalty is not None
                found = silo.statistics(weights, round_)
                reply.tensors[self.program.penalty.statistic] = found.flatten(1)
            elif self.program.algorithm.is_newton:
                gradient, hessian, loss = silo.gradient_and_hessian(weights)
                reply.tensors = {self.program.update: gradient, HESSIAN: hessian.flatten(1)}
                reply.numbers["loss"] = loss
            else:
                self._update(request, places, rates, silo, weights, reply)
            yield reply

    def _update(
        self,
        request: StackedRequest,
        places: Tensor,
        rates: Sequence[float],
        silo: StackedSilo,
        weights: Tensor,
        reply: StackedReply,
    ) -> None:
        vector, factor = None, None
        counts = request.counts[places]
        if request.step == MATCHED:
            vector = self._vector(request, places, silo, weights, counts)
            if self.program.algorithm.adds_up_in_silo:
                factor = request.numbers[PENALTY_WEIGHT][places] * counts
        local = self.program.algorithm.local
        if local is None:
            found = silo.gradients(weights, request.round, vector, factor)
        else:
            correction = None
            if self.control is not None:
                correction = request.tensors[CONTROL][places] - self.control[places]
            found = silo.take_steps(weights, local, rates, request.round, vector, factor, correction)
            self._keep(found, places, reply)
        reply.tensors[self.program.update] = found.gradient
        if found.penalty_gradient is not None:
            reply.tensors[PENALTY] = found.penalty_gradient
        reply.numbers["loss"] = found.loss

    def _keep(self, found: StackedComputed, places: Tensor, reply: StackedReply) -> None:
        """Keep the new control variates; their change is part of the reply."""
        if self.control is not None and found.mean_gradient is not None:
            reply.tensors[CONTROL] = found.mean_gradient - self.control[places]
            self.control[places] = found.mean_gradient

    def _vector(
        self, request: StackedRequest, places: Tensor, silo: StackedSilo, weights: Tensor, counts: Tensor
    ) -> Tensor:
        """Return v_e = 2/E (s_e - mean s) of each model, or 2 (s_e - mean s) for the sum."""
        assert self.program.penalty is not None
        own = silo.matched(weights, request.round)
        difference = own
        if self.program.penalty.centred:
            mean = request.tensors[self.program.penalty.statistic][places]
            difference = own - mean.view_as(own).to(own)
        if self.program.penalty.reduction != "mean":
            return 2.0 * difference
        factor = (2.0 / counts.to(wide_dtype(own.device))).to(own)
        return factor.view(-1, *[1] * (own.dim() - 1)) * difference
