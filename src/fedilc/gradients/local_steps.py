"""Take the local steps of a silo, from the weights w that it was sent to its update w - w_e."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedilc.algorithms import LocalSteps
from fedilc.data.inputs import select
from fedilc.gradients import _kernels
from fedilc.gradients.computation import SiloComputation
from fedilc.gradients.perceptron import Perceptron
from fedilc.optimizers.optimizers import make_optimizer
from fedilc.seeds import torch_generator

Tensors = list[Tensor] | tuple[Tensor, ...]


@dataclass
class Stepped:
    """The silo's update w - w_e, the mean loss and, with a correction, the mean gradient before it."""

    update: dict[str, Tensor]
    mean_gradient: dict[str, Tensor]
    loss: float


@torch.no_grad()
def take_steps(
    whole: SiloComputation,
    local: LocalSteps,
    round_: int,
    vector: Tensor | None = None,
    weight: float | None = None,
    correction: Mapping[str, Tensor] | None = None,
) -> Stepped:
    """Take the steps of one round, restore the weights, and return the update.

    Args:
        whole: the silo's examples; a first step on all of them uses the forward passes kept in this round.
        local: the number and kind of the steps.
        round_: number of the round, which seeds the batches.
        vector: v_e of the penalty, if there is one; it stays the same in all steps.
        weight: lambda E, by which J_e^T v_e is multiplied when it is added to the gradients.
        correction: c - c_e of SCAFFOLD, which is added to every gradient.
    """
    names = list(whole.runner.parameters)
    w: list[Tensor] = list(whole.runner.parameters.values())
    if vector is None and (network := whole.perceptron(local.batch(len(whole.x)))) is not None:
        flat = torch.cat([parameter.view(-1) for parameter in w]).unsqueeze(0)
        if _kernels.usable(local, len(whole.x), flat):
            return _compiled(whole, network, local, round_, flat, correction)
    start = [parameter.clone() for parameter in w]
    added = None if correction is None else [correction[name] for name in names]
    step = _optimizer_step(local, w)
    gradients = _Gradients(whole, local, round_, vector, weight)
    sums: Tensors = []
    for gradient in gradients:
        total: Tensors = gradient
        if added is not None:
            shares = torch._foreach_div(gradient, local.count(len(whole.x)))
            sums = torch._foreach_add(sums, shares) if sums else shares
            total = torch._foreach_add(total, added)
        if local.proximal:
            pull = torch._foreach_mul(torch._foreach_sub(w, start), local.proximal)
            total = torch._foreach_add(total, pull)
        step(total)
    update = torch._foreach_sub(start, w)
    torch._foreach_copy_(w, start)
    mean = dict(zip(names, sums, strict=False))
    return Stepped(dict(zip(names, update, strict=True)), mean, gradients.mean_loss())


def _compiled(
    whole: SiloComputation,
    network: Perceptron,
    local: LocalSteps,
    round_: int,
    w: Tensor,
    correction: Mapping[str, Tensor] | None,
) -> Stepped:
    """Take the steps of one round, from w as one row, in the compiled loop, without changing the model."""
    assert isinstance(whole.x, Tensor)
    parameters = whole.runner.parameters
    order = orders(len(whole.x), local, whole.seed, round_, whole.name).unsqueeze(0)
    added = None
    if correction is not None:
        added = torch.cat([correction[name].view(-1) for name in parameters]).unsqueeze(0)
    end, mean, loss = _kernels.take_steps(
        *(w, whole.x.flatten(1).unsqueeze(0), whole.y.unsqueeze(0), order, torch.zeros(1, dtype=torch.int64)),
        *(local, [local.learning_rate], network.widths, whole.loss or whole.runner.loss, added),
    )
    sizes = [parameter.numel() for parameter in parameters.values()]

    def by_name(row: Tensor) -> dict[str, Tensor]:
        parts = zip(parameters.items(), row.split(sizes), strict=True)
        return {name: part.view(parameter.shape) for (name, parameter), part in parts}

    return Stepped(by_name((w - end)[0]), by_name(mean[0]) if correction else {}, float(loss))


def _optimizer_step(local: LocalSteps, w: list[Tensor]) -> Callable[[Tensors], None]:
    """Return a function that takes one step of the local optimiser with a gradient for each parameter."""
    if local.optimizer == "sgd" and not local.momentum:
        # What torch's optimiser computes, without its work around a step, which takes longer.
        return partial(_descend, w, local.learning_rate)
    options = {"momentum": local.momentum} if local.momentum else {}
    optimizer = make_optimizer(local.optimizer, w, local.learning_rate, 0.0, options)

    def step(gradient: Tensors) -> None:
        for parameter, value in zip(w, gradient, strict=True):
            parameter.grad = value
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _descend(w: list[Tensor], rate: float, gradient: Tensors) -> None:
    torch._foreach_add_(w, gradient, alpha=-rate)


class _Gradients:
    """The gradient of each local step, at the weights of that moment, and the mean loss over all of them."""

    def __init__(
        self,
        whole: SiloComputation,
        local: LocalSteps,
        round_: int,
        vector: Tensor | None,
        weight: float | None,
    ) -> None:
        self.whole, self.local = whole, local
        self.round, self.vector, self.weight = round_, vector, weight
        self._losses: list[tuple[float, int]] = []
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []

    def __iter__(self) -> Iterator[list[Tensor]]:
        whole, examples = self.whole, len(self.whole.x)
        by_hand = whole.by_hand(self.local.batch(examples)) if self.vector is None else None
        drawn = batches(examples, self.local, whole.seed, self.round, whole.name)
        for number, rows in enumerate(drawn, 1):
            if by_hand is None:
                part = whole if rows is None and number == 1 else whole.part(rows, number)
                with torch.enable_grad():
                    found = part.gradients(self.round, self.vector, self.weight)
                self._losses.append((found.loss, len(part.x)))
                yield list(found.gradient.values())
            else:
                x, y = (whole.x, whole.y) if rows is None else (select(whole.x, rows), whole.y[rows])
                logits, gradient = by_hand(x, y)
                self._logits.append(logits)
                self._labels.append(y)
                yield gradient

    def mean_loss(self) -> float:
        """Return the mean loss over the examples of all steps, each at the weights before its step."""
        if self._logits:
            # All at once: the loss of a batch takes as long to compute as its gradient.
            losses = self.whole.example_losses(torch.cat(self._logits), torch.cat(self._labels))
            sizes = [len(y) for y in self._labels]
            totals = torch.stack([part.sum() for part in losses.double().split(sizes)]).tolist()
            self._losses = [(total / size, size) for total, size in zip(totals, sizes, strict=True)]
        return sum(loss * size for loss, size in self._losses) / sum(size for _, size in self._losses)


def batches(examples: int, local: LocalSteps, seed: int, round_: int, silo: str) -> Iterator[Tensor | None]:
    """Yield the rows of each step: every epoch has all examples in a new order. None stands for all rows.

    >>> [len(rows) for rows in batches(5, LocalSteps(steps=4, batch_size=2), 0, 1, "a")]
    [2, 2, 1, 2]
    """
    left = local.count(examples)
    size = local.batch(examples)
    if size == examples:
        yield from [None] * left
        return
    for order in orders(examples, local, seed, round_, silo):
        for rows in order.split(size)[:left]:
            yield rows
            left -= 1


def orders(examples: int, local: LocalSteps, seed: int, round_: int, silo: str) -> Tensor:
    """Return the order of the examples in each epoch; steps on all examples need one only, as they are."""
    size = local.batch(examples)
    if size == examples:
        return torch.arange(examples).unsqueeze(0)
    epochs = -(-local.count(examples) // -(-examples // size))
    generator = torch_generator(seed, round_, silo, "batches")
    return torch.stack([torch.randperm(examples, generator=generator) for _ in range(epochs)])
