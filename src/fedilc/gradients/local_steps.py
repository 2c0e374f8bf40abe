"""Take the local steps of a silo, from the weights w that it was sent to its update w - w_e."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedilc.algorithms import LocalSteps
from fedilc.gradients.computation import SiloComputation
from fedilc.optimizers.optimizers import make_optimizer
from fedilc.seeds import torch_generator


@dataclass
class Stepped:
    """The silo's update w - w_e, the mean of its gradients before any correction, and the mean loss."""

    update: dict[str, Tensor]
    mean_gradient: dict[str, Tensor]
    loss: float


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
    parameters = whole.runner.parameters
    start = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    options = {"momentum": local.momentum} if local.momentum else {}
    optimizer = make_optimizer(local.optimizer, list(parameters.values()), local.learning_rate, 0.0, options)
    mean = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    losses = count = 0.0
    steps = local.count(len(whole.x))
    for number, rows in enumerate(batches(len(whole.x), local, whole.seed, round_, whole.name), 1):
        part = whole if rows is None and number == 1 else whole.part(rows, number)
        found = part.gradients(round_, vector, weight)
        losses, count = losses + found.loss * len(part.x), count + len(part.x)
        with torch.no_grad():
            for name, parameter in parameters.items():
                gradient = found.gradient[name]
                mean[name] += gradient / steps
                total = gradient if correction is None else gradient + correction[name]
                if local.proximal:
                    total = total + local.proximal * (parameter - start[name])
                parameter.grad = total
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        update = {name: start[name] - parameter for name, parameter in parameters.items()}
        for name, parameter in parameters.items():
            parameter.copy_(start[name])
    return Stepped(update, mean, losses / count)


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
    generator = torch_generator(seed, round_, silo, "batches")
    while left:
        for rows in torch.randperm(examples, generator=generator).split(size)[:left]:
            yield rows
            left -= 1
