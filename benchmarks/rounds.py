"""A round of each algorithm against a round of fedsgd, on the Color-MNIST shapes."""

from __future__ import annotations

from itertools import count

from benchmarks.federations import color_mnist_like, color_mnist_mlp, local_server
from benchmarks.timing import Row, at_most, medians
from fedilc.algorithms import algorithms

GOALS = {
    "geometric": 1.2,
    "fedcurv": 1.2,
    "fishr-intra-arith": 1.3,
    "fishr-inter-geo": 2.0,
    "fishr-intra-geo": 3.0,
}


def rows(quick: bool) -> list[Row]:
    """One row for each algorithm."""
    federation = color_mnist_like(examples=2000 if quick else 8000)
    servers = {name: local_server(federation, color_mnist_mlp(), name) for name in algorithms}
    numbers = count(1)
    actions = {
        name: (lambda server=server: server.round(next(numbers), evaluate=False))
        for name, server in servers.items()
    }
    seconds = medians(actions, repeats=5 if quick else 9)
    base = seconds["fedsgd"]
    return [
        at_most(
            "round", name, "fedsgd round", seconds[name] / base, goal, f"{seconds[name]:.3f} s / {base:.3f} s"
        )
        for name, goal in GOALS.items()
    ]
