"""Federations of the paper's shapes, made of random numbers: speed does not depend on the digits."""

from __future__ import annotations

import torch
from torch import nn

from fedilc.algorithms import find_algorithm
from fedilc.config import Options
from fedilc.data import Federation, Silo
from fedilc.evaluation import measure
from fedilc.federation import Program, Server
from fedilc.gradients import Loss, ModelRunner
from fedilc.models import build_model
from fedilc.runtimes.local import LocalRuntime
from fedilc.training.loop import make_server


def color_mnist_like(silos: int = 5, examples: int = 8000) -> Federation:
    """Two channels of 14 by 14, one of them empty, a fifth of the pixels inked."""
    generator = torch.Generator().manual_seed(0)
    members = []
    for number in range(silos):
        y = torch.randint(0, 2, (examples,), generator=generator)
        ink = torch.rand(examples, 14, 14, generator=generator)
        ink = ink * (torch.rand(ink.shape, generator=generator) < 0.2)
        x = torch.zeros(examples, 2, 14, 14)
        x[torch.arange(examples), y] = ink
        members.append(Silo(f"silo-{number}", x, y))
    return Federation("color-mnist-like", members)


def color_mnist_mlp() -> nn.Module:
    """The paper's 392-390-390-1."""
    return build_model("mlp", (2, 14, 14), 1, seed=0)


def rotated_cifar10_like(silos: int = 3, examples: int = 1000) -> Federation:
    """Photographs of 16 by 16; a tenth of the images that the paper's silos have."""
    generator = torch.Generator().manual_seed(0)
    members = []
    for number in range(silos):
        x = torch.rand(examples, 3, 16, 16, generator=generator)
        members.append(Silo(f"silo-{number}", x, torch.randint(0, 10, (examples,), generator=generator)))
    return Federation("rotated-cifar10-like", members, loss="multiclass")


def rotated_cifar10_cnn() -> nn.Module:
    """The paper's CNN."""
    return build_model("cnn", (3, 16, 16), 10, seed=0)


def local_server(federation: Federation, model: nn.Module, name: str, environment_size: int = 32) -> Server:
    """A server over the local runtime, ready for rounds without evaluation."""
    options = Options(rounds=1, learning_rate=3e-4, penalty_weight=15.0, environment_size=environment_size)
    algorithm = find_algorithm(name)[1]
    loss = Loss(federation.loss)
    program = Program.of(algorithm, federation.loss, options, model)
    runner = ModelRunner(model, loss)
    runtime = LocalRuntime(federation, runner, program, lambda logits, y: measure(loss, logits, y))
    return make_server(model, runtime, program, options)
