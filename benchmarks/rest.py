"""A round over HTTP against the same round in this process, and its bytes against what the protocol needs.

A real coordinator and five real silos, each a process of `fedilc` on loopback with one thread, on the
Color-MNIST network with so few examples that a round is mostly travel. Both sides have the round as `fedilc`
counts it: all steps, and evaluation in every silo. Overhead is the REST round minus the local one, where
the silos compute one after another.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.federations import color_mnist_mlp
from benchmarks.processes import finish, started, url_of
from benchmarks.timing import Row, at_most
from benchmarks.travel import PROVIDER, local_seconds, overhead_row, seconds_per_round, write_experiment
from fedilc.algorithms import find_algorithm

SILOS = 5
ALGORITHMS = ("fedsgd", "fedcurv", "fishr-inter-geo")
OVERHEAD_SECONDS = 0.1
SETTINGS = {"learning_rate": 3e-4, "weight_decay": 0.01, "penalty_weight": 15.0}


@dataclass(frozen=True)
class Travelled:
    """Bytes per round of all silos together: up to the coordinator, and down from it."""

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
            rest = seconds_per_round(Path(folder) / "rest")
        found.append(overhead_row("rest", f"{name}, REST round minus local", rest, local, OVERHEAD_SECONDS))
        found += _bytes(name, travelled, _needed(name, rounds))
    return found


def _bytes(name: str, travelled: Travelled, needed: Travelled) -> list[Row]:
    pairs = {"up": (travelled.up, needed.up), "down": (travelled.down, needed.down)}
    return [
        at_most(
            "rest",
            f"{name}, bytes {way} per round",
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
    serve = ["serve", folder / "rest.toml", "--insecure", "--port", "0", "--out", folder / "rest"]
    with contextlib.ExitStack() as stack:
        coordinator = stack.enter_context(started("fedilc", *serve))
        url = url_of(coordinator)
        joined = [
            stack.enter_context(started("fedilc", "join", url, "--silo", silo, "--provider", PROVIDER))
            for silo in names
        ]
        last = last_status(url)
        for process in (*joined, coordinator):
            finish(process)
    up = sum(silo["bytes_received"] for silo in last["silos"])
    down = sum(silo["bytes_sent"] for silo in last["silos"])
    return Travelled(up / rounds, down / rounds)


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
