"""How a server's time and memory grow from 5 to 5,000 silos."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import torch

from benchmarks.federations import color_mnist_mlp
from benchmarks.processes import memory
from benchmarks.timing import Row, at_most
from fedilc.algorithms import find_algorithm
from fedilc.config import Options
from fedilc.federation import Program, Reply, Request
from fedilc.runtimes.base import Runtime
from fedilc.training.loop import make_server

FEW, MANY = 5, 5000


class Echo(Runtime):
    """Silos that answer at once with fresh vectors, so that only the server's work is measured."""

    def __init__(self, silos: tuple[str, ...]) -> None:
        self.silos = silos
        self.random = torch.Generator().manual_seed(0)

    def ask(self, request: Request) -> Iterator[Reply]:
        """One reply per silo, none of them kept."""
        for silo in request.silos:
            gradient = {n: torch.randn(w.shape, generator=self.random) for n, w in request.weights.items()}
            reply = Reply(silo, request.step, request.round, {"gradient": gradient})
            reply.numbers = {"loss": 0.0, "examples": 1}
            yield reply


def rows(quick: bool) -> list[Row]:
    """Peak memory and time per silo with many silos against few, each in a process of its own."""
    many = 500 if quick else MANY
    few_found, many_found = (_run(silos) for silos in (FEW, many))
    peak = many_found["peak"] / few_found["peak"]
    growth = (many_found["seconds"] / many) / (few_found["seconds"] / FEW)
    peaks = f"{many_found['peak'] / 2**20:.0f} MiB / {few_found['peak'] / 2**20:.0f} MiB"
    per_silo = f"{1e3 * many_found['seconds'] / many:.2f} ms / {1e3 * few_found['seconds'] / FEW:.2f} ms"
    return [
        at_most("growth", f"server's peak memory, {many:,} silos", f"{FEW} silos", peak, 1.1, peaks),
        at_most("growth", f"server's time per silo, {many:,} silos", f"{FEW} silos", growth, 1.5, per_silo),
    ]


def _run(silos: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.growth", str(silos)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def _measure(silos: int) -> None:
    names = tuple(f"silo-{number}" for number in range(silos))
    options, model = Options(rounds=1, learning_rate=1e-3), color_mnist_mlp()
    program = Program.of(find_algorithm("geometric")[1], "binary", options, model)
    server = make_server(model, Echo(names), program, options)
    repeats = 1 if silos > FEW else 20
    server.round(1, evaluate=False)
    started = time.perf_counter()
    for number in range(2, 2 + repeats):
        server.round(number, evaluate=False)
    seconds = (time.perf_counter() - started) / repeats
    print(json.dumps({"seconds": seconds, "peak": memory("VmHWM")}))


if __name__ == "__main__":
    _measure(int(sys.argv[1]))
