"""Compute what one silo answers for many models of one shape at once: M sets of weights, one tensor.

`StackedNetwork` runs a perceptron for all models by batched products; `StackedSilo`
computes statistics, gradients, J_e^T v_e and local steps of those models that one silo trains.
Weights and gradients are (models, parameters): every row has all parameters of one model, one after another.
What is computed is what `computation.py` and `local_steps.py` compute for one model, term by term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedilc.algorithms import LocalSteps
from fedilc.errors import ModelError
from fedilc.gradients import _kernels
from fedilc.gradients.environments import Layout, lay_out, lay_out_mean
from fedilc.gradients.forward import BackwardStarts, Pass
from fedilc.gradients.local_steps import batches, orders
from fedilc.gradients.losses import Loss
from fedilc.gradients.perceptron import Perceptron
from fedilc.optimizers.optimizers import make_optimizer

if TYPE_CHECKING:
    from fedilc.aggregation import Aggregator
    from fedilc.penalties import Penalty

STACK_BYTES = 32 << 20  # of the gradients of environments that are formed at a time
ALL = "all"  # the one name under which environments vote: a row has all parameters of a model


@dataclass(frozen=True)
class _Layer:
    """A linear layer: where its weight and its bias are in a row of parameters, and its shape."""

    weight: slice
    bias: slice
    shape: tuple[int, int]


class StackedNetwork:
    """A perceptron with M sets of weights, as batched products.

    Models may differ in the width of their inputs: narrower ones have weights of 0 for inputs of 0.

    Args:
        model: linear layers with ReLU between them (see `Perceptron`).
        width: number of inputs of the widest model.

    Attributes:
        sizes: the shape of each parameter of the widest model, by name.
        size: the number of parameters of the widest model.
        widths: the number of inputs of the widest model, and of each layer's outputs.
    """

    def __init__(self, model: nn.Module, width: int) -> None:
        perceptron = Perceptron.of(model)
        if perceptron is None:
            raise ModelError("only linear layers with ReLU between them can be stacked")
        self.width = width
        places: dict[int, slice] = {}
        self.sizes: dict[str, torch.Size] = {}
        self.size = 0
        first = perceptron.layers[0][0]
        for name, parameter in model.named_parameters():
            shape = torch.Size((len(first), width)) if parameter is first else parameter.shape
            self.sizes[name] = shape
            places[id(parameter)] = slice(self.size, self.size + shape.numel())
            self.size += shape.numel()
        self.layers = [
            _Layer(
                places[id(weight)],
                places[id(bias)],
                (len(weight), width if weight is first else weight.shape[1]),
            )
            for weight, bias in perceptron.layers
        ]
        self.widths = [width, *(layer.shape[0] for layer in self.layers)]
        self.classifier = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]

    def row(self, model: nn.Module) -> Tensor:
        """Return the parameters of a model as a row; what the model lacks is 0."""
        found = []
        for parameter, size in zip(model.parameters(), self.sizes.values(), strict=True):
            padded = parameter.detach().new_zeros(size)
            padded[_inside(parameter.shape)] = parameter.detach()
            found.append(padded.reshape(-1))
        return torch.cat(found)

    @torch.no_grad()
    def load(self, model: nn.Module, row: Tensor) -> None:
        """Copy a row into the parameters of a model."""
        for parameter, value in zip(model.parameters(), self.views(model, row), strict=True):
            parameter.copy_(value)

    def views(self, model: nn.Module, rows: Tensor) -> list[Tensor]:
        """Return what rows have of each parameter of such a model, which shares the memory of the rows."""
        values = self.by_name(rows).values()
        return [
            value[_inside(parameter.shape, value.dim())]
            for parameter, value in zip(model.parameters(), values, strict=True)
        ]

    def members(self, model: nn.Module) -> Tensor:
        """Return which coordinates of a row the model has."""
        found = {name: torch.zeros(size, dtype=torch.bool) for name, size in self.sizes.items()}
        for (_, parameter), mask in zip(model.named_parameters(), found.values(), strict=True):
            mask[_inside(parameter.shape)] = True
        return torch.cat([mask.reshape(-1) for mask in found.values()])

    def by_name(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the parameters of rows (..., parameters) by name, each with its own shape."""
        parts = rows.split([size.numel() for size in self.sizes.values()], -1)
        lead = rows.shape[:-1]
        return {
            name: part.reshape(*lead, *size)
            for (name, size), part in zip(self.sizes.items(), parts, strict=True)
        }

    def forward(self, weights: Tensor, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the outputs for x (models, examples, inputs), and each linear layer's input."""
        seen: list[Tensor] = []
        for layer in self.layers:
            seen.append(x.relu() if seen else x)
            matrix = weights[:, layer.weight].view(len(weights), *layer.shape).mT
            x = torch.baddbmm(weights[:, layer.bias].unsqueeze(1), seen[-1], matrix)
        return x, seen

    @torch.no_grad()
    def output_gradients(
        self, weights: Tensor, seen: Sequence[Tensor], delta: Tensor, at_features: Tensor | None = None
    ) -> list[Tensor]:
        """Return the gradient at each linear layer's output, given that at the last layer's.

        `at_features` is a further gradient at the last layer's input.
        """
        found = [delta]
        for layer, inputs in zip(self.layers[:0:-1], seen[:0:-1], strict=True):
            matrix = weights[:, layer.weight].view(len(weights), *layer.shape)
            at_inputs = torch.bmm(found[-1], matrix)
            if at_features is not None and len(found) == 1:
                at_inputs += at_features
            found.append(torch.ops.aten.threshold_backward(at_inputs, inputs, 0))
        return found[::-1]

    @torch.no_grad()
    def gradient(self, seen: Sequence[Tensor], arrived: Sequence[Tensor], out: Tensor) -> Tensor:
        """Write the gradient of each row's sum of losses to `out` (rows, parameters), and return it."""
        for layer, a, d in zip(self.layers, seen, arrived, strict=True):
            out[:, layer.weight] = torch.bmm(d.mT, a).flatten(1)
            out[:, layer.bias] = d.sum(1)
        return out

    @torch.no_grad()
    def predict(self, weights: Tensor, inputs: Sequence[Tensor]) -> Tensor:
        """Return the outputs of models for as many examples each, narrower ones filled up with columns of 0.

        An x that is the same tensor for all models is not copied.
        """
        first = inputs[0]
        wide = {id(x): self.widened(x, weights.dtype) for x in inputs}
        shared = len(wide) == 1
        x = (
            wide[id(first)].expand(len(weights), -1, -1)
            if shared
            else torch.stack([wide[id(x)] for x in inputs])
        )
        return self.forward(weights, x)[0]

    def widened(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return inputs (examples, ...) as rows of a dtype, with columns of 0 up to the widest model."""
        x = x.reshape(len(x), -1).to(dtype)
        missing = self.width - x.shape[1]
        return nn.functional.pad(x, (0, missing)) if missing else x


def _inside(shape: Sequence[int], dimensions: int | None = None) -> tuple[slice, ...]:
    """Return the place of a smaller tensor in one of as many dimensions or more, of which it has the last."""
    before = 0 if dimensions is None else dimensions - len(shape)
    return (*[slice(None)] * before, *(slice(0, length) for length in shape))


class StackedPass(Pass):
    """The forward pass of M models on their examples: (models, examples, ...) in place of (examples, ...)."""

    def losses(self) -> Tensor:
        """Return the loss of each example, with its graph: (models, examples)."""
        found = self.loss.per_example(self.logits.flatten(0, 1), self.y.reshape(-1))
        return found.view(self.y.shape)

    def logit_gradient(self) -> Tensor:
        """Return delta: (models, examples, logits)."""
        found = self.loss.logit_gradient(self.logits.flatten(0, 1), self.y.reshape(-1))
        return found.view(self.logits.shape)

    def only_features(self) -> Tensor:
        """Return the classifier's input: (models, examples, width)."""
        return self.features[-1]

    @property
    def lead(self) -> torch.Size:
        """Return (models,), the dimensions before those of one model."""
        return self.y.shape[:1]


@dataclass
class StackedComputed:
    """Gradients, J_e^T v_e unless they were added to those, and mean losses (float64), a row per model."""

    gradient: Tensor
    penalty_gradient: Tensor | None
    loss: Tensor
    mean_gradient: Tensor | None = None


@dataclass(eq=False)
class StackedSilo:
    """One silo's examples, as some models of a stack see them: all models have the same number of examples.

    Args:
        network: runs the models.
        name: name of the silo, from which its random choices derive.
        x: inputs (models, examples, inputs); memory may be shared by models.
        y: labels (models, examples).
        seeds: seed of each model's run.
        loss: loss of the models.
        environment_size: examples per environment; None is all of them.
        intra: aggregation of the gradients of environments, each of which is a vote; None averages them.
        penalty: penalty of the runs, if they have one.
        step: number of the local step.
    """

    network: StackedNetwork
    name: str
    x: Tensor
    y: Tensor
    seeds: Sequence[int]
    loss: Loss
    environment_size: int | None = None
    intra: Aggregator | None = None
    penalty: Penalty | None = None
    step: int = 1

    def __post_init__(self) -> None:
        self._kept: tuple[int, StackedPass, Any] | None = None

    @property
    def examples(self) -> int:
        """Return the number of examples of each model."""
        return self.y.shape[1]

    def statistics(self, weights: Tensor, round_: int) -> Tensor:
        """Return s_e of each model, and keep the forward pass for the gradients of the round."""
        assert self.penalty is not None
        chunk, total = self._matched(weights, round_)
        self._kept = round_, chunk, total
        return self.penalty.value(total)

    def matched(self, weights: Tensor, round_: int) -> Tensor:
        """Return s_e of this round, computed again if it was not asked for in the step before."""
        if self._kept is None or self._kept[0] != round_:
            return self.statistics(weights, round_)
        assert self.penalty is not None
        return self.penalty.value(self._kept[2])

    def gradients(
        self, weights: Tensor, round_: int, vector: Tensor | None = None, factor: Tensor | None = None
    ) -> StackedComputed:
        """Return the gradients and, given v_e, J_e^T v_e; with `factor` (lambda E) both are one."""
        if vector is None:
            chunk = self._pass(weights, round_, graph=False)
            gradient = (
                self._mean_gradient(chunk, round_) if self.intra is None else self._votes(chunk, round_)
            )
            return StackedComputed(gradient, None, self._loss(chunk))
        self.matched(weights, round_)
        assert self.penalty is not None
        assert self._kept is not None
        (_, chunk, total), self._kept = self._kept, None
        if factor is not None and self.intra is None:
            vector = factor.to(vector).view(-1, *[1] * (vector.dim() - 1)) * vector
            product = self.penalty.carry_back(chunk, total, vector)
            starts = [(chunk.losses(), self._example_shares(chunk.logits, round_)), *product]
            return StackedComputed(self._backward(chunk, starts), None, self._loss(chunk))
        product = self.penalty.carry_back(chunk, total, vector)
        gradient = self._mean_gradient(chunk, round_) if self.intra is None else self._votes(chunk, round_)
        penalty_gradient, losses = self._backward(chunk, product), self._loss(chunk)
        if factor is None:
            return StackedComputed(gradient, penalty_gradient, losses)
        return StackedComputed(gradient + factor.unsqueeze(1).to(gradient) * penalty_gradient, None, losses)

    def gradient_and_hessian(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean gradients, the mean Hessians and the mean losses of linear models with one output.

        The order of a row is that of `newton.py`: the coefficients, and the intercept as the last of them.
        """
        chunk = self._pass(weights, 0, graph=False)
        inputs = torch.cat([self.x, self.x.new_ones(*self.x.shape[:2], 1)], 2)
        logits, y = chunk.logits.flatten(0, 1), self.y.reshape(-1)
        second = self.loss.weighted_curvature(logits, y).view(chunk.logits.shape)
        gradient = torch.bmm(inputs.mT, chunk.logit_gradient())[:, :, 0] / self.examples
        hessian = torch.bmm(inputs.mT, inputs * second) / self.examples
        return gradient, hessian, chunk.losses().mean(1)

    def take_steps(
        self,
        weights: Tensor,
        local: LocalSteps,
        rates: Sequence[float],
        round_: int,
        vector: Tensor | None = None,
        factor: Tensor | None = None,
        correction: Tensor | None = None,
    ) -> StackedComputed:
        """Take the local steps of one round; return w - w_e, the mean losses and the mean gradients."""
        plain = vector is None and self.intra is None and self.environment_size is None
        if plain and self.loss.entry.function is None and _kernels.usable(local, self.examples, weights):
            return self._compiled(weights, local, rates, round_, correction)
        now, steps = weights.clone(), local.count(self.examples)
        mean, losses, count = torch.zeros_like(weights), torch.zeros(len(weights), dtype=torch.float64), 0
        move = _mover(local, rates, now)
        for number, part in enumerate(self._batches(local, round_), 1):
            part.step = number
            found = part.gradients(now, round_, vector, factor)
            losses += found.loss * part.examples
            count += part.examples
            mean += found.gradient / steps
            total = found.gradient if correction is None else found.gradient + correction
            if local.proximal:
                total = total + local.proximal * (now - weights)
            move(total)
        return StackedComputed(weights - now, None, losses / count, mean)

    def _compiled(
        self,
        weights: Tensor,
        local: LocalSteps,
        rates: Sequence[float],
        round_: int,
        correction: Tensor | None,
    ) -> StackedComputed:
        """Take the local steps in the compiled loop: each model has the bits of its own run."""
        distinct = {seed: place for place, seed in enumerate(dict.fromkeys(self.seeds))}
        each = [orders(self.examples, local, seed, round_, self.name) for seed in distinct]
        which = torch.tensor([distinct[seed] for seed in self.seeds])
        given = weights, self.x, self.y, torch.stack(each), which, local, rates, self.network.widths
        end, means, losses = _kernels.take_steps(*given, self.loss, correction)
        return StackedComputed(weights - end, None, losses, means)

    def _batches(self, local: LocalSteps, round_: int) -> Iterator[StackedSilo]:
        """Yield the examples of each step: each model has the batches that its own run would have."""
        distinct = {seed: place for place, seed in enumerate(dict.fromkeys(self.seeds))}
        if local.batch(self.examples) == self.examples:
            for number in range(local.count(self.examples)):
                yield self if number == 0 else replace(self)
            return
        each = [batches(self.examples, local, seed, round_, self.name) for seed in distinct]
        which = torch.tensor([distinct[seed] for seed in self.seeds])
        left = local.count(self.examples)
        while left:
            taken = min(left, math.ceil(self.examples / local.batch(self.examples)))
            drawn = [[rows for rows, _ in zip(one, range(taken), strict=False)] for one in each]
            left -= taken
            orders = torch.stack([torch.cat([rows for rows in one if rows is not None]) for one in drawn])
            x, y = self._ordered(orders, which)
            start = 0
            for rows in drawn[0]:
                assert rows is not None
                piece = slice(start, start + len(rows))
                start += len(rows)
                yield replace(self, x=x[:, piece], y=y[:, piece])

    def _ordered(self, orders: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return the examples in the order of each model: `orders` has a row per distinct one."""
        if len(orders) == 1:
            if self.x.stride(0) == 0:  # one table for all models: it is copied once
                x = self.x[0].index_select(0, orders[0])  # takes less than half the time of brackets
                return x.unsqueeze(0).expand(len(self.y), -1, -1), self.y[:, orders[0]]
            return self.x[:, orders[0]], self.y[:, orders[0]]
        models = torch.arange(len(self.y)).unsqueeze(1)
        return self.x[models, orders[which]], self.y[models, orders[which]]

    def _layouts(self, round_: int) -> dict[int, Layout]:
        """Return how the examples are cut into environments, by seed."""
        most = self.examples
        return {
            seed: lay_out(most, self.environment_size, most, seed, round_, self.name, self.step)
            for seed in dict.fromkeys(self.seeds)
        }

    def _example_shares(self, like: Tensor, round_: int) -> Tensor:
        """Return what each example counts in the mean over environments of their mean losses."""
        whole = torch.full(self.y.shape, 1 / self.examples, dtype=like.dtype)
        if self.environment_size is None or self.intra is not None:
            return whole
        means = {
            seed: lay_out_mean(one, self.examples).weights for seed, one in self._layouts(round_).items()
        }
        for place, seed in enumerate(self.seeds):
            weights = means[seed]
            if weights is not None:
                whole[place] = weights.to(like)
        return whole

    def _pass(self, weights: Tensor, round_: int, graph: bool) -> StackedPass:
        x, y = self.x, self.y
        if self.intra is not None:
            orders = {seed: one.order for seed, one in self._layouts(round_).items()}
            if next(iter(orders.values())) is not None:
                places = {seed: place for place, seed in enumerate(orders)}
                which = torch.tensor([places[seed] for seed in self.seeds])
                x, y = self._ordered(
                    torch.stack([order for order in orders.values() if order is not None]), which
                )
        if graph and self.penalty is not None and self.penalty.needs_graph:
            at = weights.detach().requires_grad_()
            with torch.enable_grad():
                logits, seen = self.network.forward(at, x)
        else:
            at = weights
            with torch.no_grad():
                logits, seen = self.network.forward(at, x)
            if graph:  # a graph from here on; `_backward` carries gradients on to the weights by hand
                logits.requires_grad_()
                for features in seen[1:][-1:]:
                    features.requires_grad_()
        parameters: Any = [at]
        return StackedPass(x, y, logits, seen, [], self.loss, parameters, self.network.classifier)

    def _matched(self, weights: Tensor, round_: int) -> tuple[StackedPass, Any]:
        assert self.penalty is not None
        chunk = self._pass(weights, round_, graph=True)
        return chunk, self.penalty.sums(chunk)

    def _backward(self, chunk: StackedPass, starts: BackwardStarts) -> Tensor:
        """Return the gradient of a backward pass that begins at `starts`, a row per model."""
        (weights,) = chunk.parameters
        if not starts:
            return torch.zeros_like(weights)
        places = [place for place, _ in starts]
        given = [start.to(place).expand_as(place) for place, start in starts]
        ends = [weights] if weights.requires_grad else [chunk.logits, *chunk.features[1:][-1:]]
        found = torch.autograd.grad(places, ends, given, materialize_grads=True, retain_graph=True)
        if weights.requires_grad:
            return found[0]
        arrived = self.network.output_gradients(weights, chunk.features, *found)
        return self.network.gradient(chunk.features, arrived, torch.empty_like(weights))

    @torch.no_grad()
    def _loss(self, chunk: StackedPass) -> Tensor:
        """Return the mean loss of each model, in float64."""
        return chunk.losses().double().mean(1)

    @torch.no_grad()
    def _mean_gradient(self, chunk: StackedPass, round_: int) -> Tensor:
        delta = chunk.logit_gradient()
        if self.environment_size is None or self.intra is not None:
            delta = delta.mul_(1 / self.examples)
        else:
            delta = delta * self._example_shares(chunk.logits, round_).unsqueeze(2)
        weights = chunk.parameters[0]
        arrived = self.network.output_gradients(weights, chunk.features, delta)
        return self.network.gradient(chunk.features, arrived, torch.empty_like(weights))

    @torch.no_grad()
    def _votes(self, chunk: StackedPass, round_: int) -> Tensor:
        """Return the aggregates over environments; NaN for a model if an environment's is not finite."""
        assert self.intra is not None
        weights = chunk.parameters[0].detach()
        arrived = self.network.output_gradients(weights, chunk.features, chunk.logit_gradient())
        votes = self.intra.stream({ALL: weights}, f"silo {self.name!r}")
        models, finite = len(weights), torch.ones(len(weights), dtype=torch.bool)
        most = max(1, STACK_BYTES // (weights.numel() * weights.element_size()))
        for cut in self._layouts(round_)[self.seeds[0]].chunks:
            step = most * cut.size
            for start in range(cut.start, cut.stop, step):
                rows = slice(start, min(start + step, cut.stop))
                environments = (rows.stop - rows.start) // cut.size
                shape = (models * environments, cut.size, -1)
                a, d = ([one[:, rows].reshape(shape) for one in many] for many in (chunk.features, arrived))
                each = self.network.gradient(a, d, weights.new_empty(shape[0], weights.shape[1])) / cut.size
                stack = each.view(models, environments, -1).transpose(0, 1).contiguous()
                fine = torch.isfinite(stack.sum((0, 2)))
                if not fine.all():
                    finite &= fine
                    stack[:, ~fine] = 0
                votes.stack(ALL, stack)
                votes.counted(environments)
        found = votes.aggregator.finalize(votes.state).value[ALL]
        found[~finite] = math.nan
        return found


def _mover(local: LocalSteps, rates: Sequence[float], weights: Tensor) -> Callable[[Tensor], None]:
    """Return what takes a step with the gradients of all models, in place; each model has its own rate."""
    if local.optimizer == "sgd" and not local.momentum:
        return partial(_descend, weights, weights.new_tensor(rates).unsqueeze(1))
    options = {"momentum": local.momentum} if local.momentum else {}
    groups = []
    for rate in dict.fromkeys(rates):
        rows = torch.tensor([place for place, own in enumerate(rates) if own == rate])
        parameter = nn.Parameter(weights[rows])
        groups.append((rows, parameter, make_optimizer(local.optimizer, [parameter], rate, 0.0, options)))

    def move(gradient: Tensor) -> None:
        for rows, parameter, optimizer in groups:
            parameter.grad = gradient[rows]
            optimizer.step()
            weights[rows] = parameter.detach()

    return move


def _descend(weights: Tensor, rates: Tensor, gradient: Tensor) -> None:
    weights.sub_(rates * gradient)
