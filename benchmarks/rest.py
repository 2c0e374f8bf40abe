"""A round over HTTP against the same round in this process, and its bytes against what the protocol needs.

A real coordinator and five real silos, each a process of `fedilc` on loopback with one thread, on the
Color-MNIST network with so few examples that a round is mostly travel. Both sides have the round as `fedilc`
counts it: all steps, and evaluation in every silo. Overhead is the REST round minus the local one, where
the silos compute one after another.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.federations import color_mnist_mlp
from benchmarks.timing import Row, at_most
from benchmarks.travel import PROVIDER, local_seconds, seconds_a_round, write_experiment
from fedilc.algorithms import find_algorithm

SILOS = 5
ALGORITHMS = ("fedsgd", "fedcurv", "fishr-inter-geo")
OVERHEAD_SECONDS = 0.1
SETTINGS = {"learning_rate": 3e-4, "weight_decay": 0.01, "penalty_weight": 15.0}


@dataclass(frozen=True)
class Travelled:
    """Bytes a round of all silos together: up to the coordinator, and down from it."""

    up: float
    down: float


def rows(quick: bool) -> list[Row]:
    """Overhead, bytes up and bytes down of each algorithm; quickly, of the one that sends the most."""
    rounds = 20 if quick else 60
    found = []
    for name in ALGORITHMS[-1:] if quick else ALGORITHMS:
        with tempfile.TemporaryDirectory() as folder:
            local = local_seconds(SILOS, name, rounds, SETTINGS, Path(folder) / "local")
            travelled = over_http(name, rounds, Path(folder))
            rest = seconds_a_round(Path(folder) / "rest")
        overhead = rest - local
        detail = f"{1e3 * rest:.0f} ms - {1e3 * local:.0f} ms = {1e3 * overhead:.0f} ms"
        against = f"{1e3 * OVERHEAD_SECONDS:.0f} ms"
        what = f"{name}, REST round minus local"
        found.append(at_most("rest", what, against, overhead / OVERHEAD_SECONDS, 1, detail))
        found += _bytes(name, travelled, _needed(name, rounds))
    return found


def _bytes(name: str, travelled: Travelled, needed: Travelled) -> list[Row]:
    pairs = {"up": (travelled.up, needed.up), "down": (travelled.down, needed.down)}
    return [
        at_most(
            "rest",
            f"{name}, bytes {way} a round",
            "what the protocol needs",
            seen / need,
            1.05,
            f"{seen:,.0f} / {need:,.0f}",
        )
        for way, (seen, need) in pairs.items()
    ]


def _needed(name: str, rounds: int) -> Travelled:
    """w down once a step and once before the first, mean C down; C_e, gradient and product up."""
    algorithm = find_algorithm(name)[1]
    parameters = [p.numel() for p in color_mnist_mlp().parameters()]
    weights, variance = 4 * sum(parameters), 4 * sum(parameters[-2:]) if algorithm.penalty is not None else 0
    vectors = 2 if algorithm.penalty is not None and not algorithm.adds_up_in_silo else 1
    return Travelled(
        SILOS * (variance + vectors * weights), SILOS * (weights * (rounds + 1) / rounds + variance)
    )


def over_http(name: str, rounds: int, folder: Path, silos: int = SILOS) -> Travelled:
    """Run over HTTP; the run folder is `rest`."""
    settings = {"algorithm": name, "rounds": rounds, **SETTINGS}
    names = [f"silo-{number}" for number in range(silos)]
    write_experiment(folder / "rest.toml", names, settings)
    serve = ["serve", str(folder / "rest.toml"), "--insecure", "--port", "0", "--out", str(folder / "rest")]
    with _process(serve) as coordinator, contextlib.ExitStack() as joined:
        url = url_of(coordinator)
        for silo in names:
            join = ["join", url, "--silo", silo, "--provider", PROVIDER]
            joined.enter_context(_process(join))
        last = last_status(url)
    up = sum(silo["bytes_received"] for silo in last["silos"])
    down = sum(silo["bytes_sent"] for silo in last["silos"])
    return Travelled(up / rounds, down / rounds)


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A `fedilc` of its own; waited for, or ended where that takes too long."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    whole = [sys.executable, "-m", "fedilc", *command]
    with subprocess.Popen(whole, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
            process.communicate(timeout=60)
        finally:
            process.kill()
    if process.returncode:
        raise RuntimeError(f"fedilc {command[0]} ended with {process.returncode}")


def url_of(coordinator: subprocess.Popen[str]) -> str:
    """The address that a coordinator says silos join at."""
    assert coordinator.stdout is not None
    for line in coordinator.stdout:
        words = line.split()
        if words[:3] == ["silos", "join", "at"]:
            return words[3].rstrip(",")
    raise RuntimeError("the coordinator did not start")


def last_status(url: str) -> dict:
    """The status that ends the stream of events."""
    last, kind = {}, ""
    with httpx.stream("GET", f"{url}/v1/events", timeout=600) as events:
        for line in events.iter_lines():
            if line.startswith("event:"):
                kind = line.removeprefix("event: ")
            elif line.startswith("data:") and kind == "status":
                last = json.loads(line.removeprefix("data: "))
    if last.get("outcome") != "complete":
        raise RuntimeError(f"the run ended as {last.get('outcome')!r}")
    return last
