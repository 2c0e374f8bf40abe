"""Rounds of each algorithm against rounds of fedsgd, on the shapes of Color-MNIST and Rotated-CIFAR10."""

from __future__ import annotations

import resource
from collections.abc import Callable
from itertools import count

import torch
from torch import nn

from benchmarks.federations import (
    color_mnist_like,
    color_mnist_mlp,
    local_server,
    rotated_cifar10_cnn,
    rotated_cifar10_like,
)
from benchmarks.timing import Row, at_most, medians
from fedilc import algorithms
from fedilc.data import Federation
from fedilc.gradients import Loss, ModelRunner

MLP_GOALS = {
    "geometric": 1.2,
    "fedcurv": 1.1,
    "fishr-intra-arith": 1.15,
    "fishr-inter-geo": 1.7,
    "fishr-intra-geo": 2.6,
}
CNN_GOALS = {"fishr-inter-geo": 1.7, "fishr-intra-geo": 2.2}
SYSTEM_GOAL = 0.1
LOOP_GOAL = 1.05


def rows(quick: bool) -> list[Row]:
    """One row per algorithm and network, and the CNN against a plain loop of torch."""
    repeats = 5 if quick else 9
    mlp = color_mnist_like(examples=2000 if quick else 8000)
    found = _against_fedsgd("MLP round", mlp, color_mnist_mlp, 32, list(algorithms.PAPER), MLP_GOALS, repeats)
    cnn = rotated_cifar10_like(examples=200 if quick else 1000)
    names = ["fedsgd", *CNN_GOALS]
    found += _against_fedsgd("CNN round", cnn, rotated_cifar10_cnn, 64, names, CNN_GOALS, repeats)
    return [*found, _against_loop(cnn, repeats)]


def _against_fedsgd(
    group: str,
    federation: Federation,
    make_model: Callable[[], nn.Module],
    environment_size: int,
    names: list[str],
    goals: dict[str, float],
    repeats: int,
) -> list[Row]:
    servers = {name: local_server(federation, make_model(), name, environment_size) for name in names}
    numbers = count(1)
    shares: dict[str, list[float]] = {name: [] for name in names}

    def measured_round(name: str) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF)
        servers[name].round(next(numbers), evaluate=False)
        after = resource.getrusage(resource.RUSAGE_SELF)
        system = after.ru_stime - before.ru_stime
        shares[name].append(system / (system + after.ru_utime - before.ru_utime))

    seconds = medians({name: lambda name=name: measured_round(name) for name in names}, repeats)
    base = seconds["fedsgd"]
    found = [
        at_most(
            group, name, "fedsgd round", seconds[name] / base, goal, f"{seconds[name]:.3f} s / {base:.3f} s"
        )
        for name, goal in goals.items()
    ]
    worst = max(names, key=lambda name: sorted(shares[name])[len(shares[name]) // 2])
    share = sorted(shares[worst])[len(shares[worst]) // 2]
    return [*found, at_most(group, "system time", "processor time", share, SYSTEM_GOAL, f"worst: {worst}")]


def _against_loop(federation: Federation, repeats: int) -> Row:
    """A fedsgd round against the same forward and backward passes and Adam, in plain torch."""
    server = local_server(federation, rotated_cifar10_cnn(), "fedsgd")
    numbers = count(1)
    model = rotated_cifar10_cnn().to(memory_format=torch.channels_last)
    size = ModelRunner(rotated_cifar10_cnn(), Loss("multiclass")).most_examples(federation.silos[0].x)
    inputs = [silo.x.to(memory_format=torch.channels_last) for silo in federation.silos]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)

    def loop() -> None:
        optimizer.zero_grad()
        for x, silo in zip(inputs, federation.silos, strict=True):
            for images, labels in zip(x.split(size), silo.y.split(size), strict=True):
                loss = nn.functional.cross_entropy(model(images), labels, reduction="sum")
                (loss / (len(x) * len(inputs))).backward()
        optimizer.step()

    actions = {"fedsgd": lambda: server.round(next(numbers), evaluate=False), "loop": loop}
    seconds = medians(actions, repeats)
    detail = f"{seconds['fedsgd']:.3f} s / {seconds['loop']:.3f} s"
    ratio = seconds["fedsgd"] / seconds["loop"]
    return at_most("CNN round", "fedsgd", "plain torch loop", ratio, LOOP_GOAL, detail)
