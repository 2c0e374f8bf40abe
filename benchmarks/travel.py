"""What the benchmarks of remote runtimes share: silos so small that rounds are mostly travel, and times."""

from __future__ import annotations

import json
import socket
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.federations import color_mnist_like, color_mnist_mlp
from benchmarks.timing import Row, at_most
from fedilc import Federation, Silo, train

EXAMPLES = 64
PROVIDER = "benchmarks.travel:make_silo"
WARM_UP = 2


def federation(silos: int) -> Federation:
    """Small silos called silo-0, silo-1, ...; half of each one's examples are for validation."""
    made = color_mnist_like(silos, 2 * EXAMPLES)
    members = [
        Silo(s.name, s.x[:EXAMPLES], s.y[:EXAMPLES], s.x[EXAMPLES:], s.y[EXAMPLES:]) for s in made.silos
    ]
    return Federation("travel", members)


def make_silo(name: str) -> Silo:
    """What every silo names as its provider; a silo is the same however many come after it."""
    number = int(name.removeprefix("silo-"))
    return federation(number + 1).silos[number]


def make_partition(partition_id: int) -> Silo:
    """The same by its number, as a node of Flower asks for it."""
    return make_silo(f"silo-{partition_id}")


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def write_experiment(path: Path, silos: Sequence[str], settings: Mapping[str, object]) -> None:
    """An experiment whose silos are elsewhere, as a file."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    lines += ["[data]", 'source = "remote"', f"silos = {json.dumps(list(silos))}", "inputs = [2, 14, 14]"]
    path.write_text("\n".join(lines) + "\n")


def local_seconds(silos: int, name: str, rounds: int, settings: Mapping[str, object], out: Path) -> float:
    """Seconds per round in this process, on one thread as each silo has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(federation(silos), color_mnist_mlp(), name, rounds=rounds, **settings, out=out)
    finally:
        torch.set_num_threads(threads)
    return seconds_per_round(out)


def seconds_per_round(run: Path) -> float:
    """The median of a run folder's rounds, without the first, which also wait for silos and kernels."""
    lines = (run / "timing.jsonl").read_text().splitlines()[WARM_UP:]
    return statistics.median(json.loads(line)["seconds"] for line in lines)


def overhead_row(group: str, what: str, remote: float, local: float, limit: float) -> Row:
    """Return the row on how many seconds a remote round takes more than a local one."""
    overhead = remote - local
    detail = f"{1e3 * remote:.0f} ms - {1e3 * local:.0f} ms = {1e3 * overhead:.0f} ms"
    return at_most(group, what, f"{1e3 * limit:.0f} ms", overhead / limit, 1, detail)
