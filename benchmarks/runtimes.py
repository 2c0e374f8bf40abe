"""One job on every runtime: seconds per round, and bytes over loopback.

    python -m benchmarks.runtimes [PYTHON_OF_AN_ENVIRONMENT_WITH_FLOWER]

prints a Markdown table. Three silos with so few examples that a round is mostly travel, the Color-MNIST
network, `fishr-inter-geo`, evaluation in every round, one thread per process. Bytes are what the loopback
device has carried, so nothing else should use it meanwhile: messages, TLS, and what else wraps them.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import flower
from benchmarks.federations import color_mnist_mlp
from benchmarks.nvflare import SETTINGS, SILOS, deployed
from benchmarks.processes import torchrun
from benchmarks.rest import over_http
from benchmarks.travel import WARM_UP, federation, local_seconds, seconds_per_round
from fedilc import train
from fedilc.runtimes.distributed import joined_group

ALGORITHM = "fishr-inter-geo"
ROUNDS, FLOWER_ROUNDS = 20, 4


@dataclass
class Loopback:
    """What loopback carries per round, from a run's first rounds to its last; looked at as the run goes."""

    timing: Path
    _seen: list[tuple[int, int]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Loopback:
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.005):
            done = len(self.timing.read_text().splitlines()) if self.timing.exists() else 0
            if done >= WARM_UP and (not self._seen or done > self._seen[-1][0]):
                self._seen.append((done, _carried()))

    def bytes_per_round(self) -> float:
        """From the first look to the last."""
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first)


def _carried() -> int:
    """Bytes that loopback has carried since the machine started."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


def _local(folder: Path) -> None:
    local_seconds(SILOS, ALGORITHM, ROUNDS, SETTINGS, folder / "run")


def _two_ranks(folder: Path) -> None:
    torchrun(2, "benchmarks.runtimes", "--rank", folder / "run")


def _rest(folder: Path) -> None:
    over_http(ALGORITHM, ROUNDS, folder, SILOS)


def _nvflare(folder: Path) -> None:
    deployed(ROUNDS, folder, ALGORITHM)


def _flower(folder: Path, python: Path) -> None:
    flower.deployed({"algorithm": ALGORITHM, "rounds": FLOWER_ROUNDS, **SETTINGS}, SILOS, folder, python)


def jobs(flower_python: Path | None) -> dict[str, tuple[Callable[[Path], None], str]]:
    """Return what does the job on each runtime, in a folder, and the run's place in it."""
    nvflare = "poc/fedilc/prod_00/server/fedilc-runs/measured"
    found: dict[str, tuple[Callable[[Path], None], str]] = {
        "one process (`fedilc run`)": (_local, "run"),
        "two ranks (`torchrun -m fedilc run`)": (_two_ranks, "run"),
        "HTTP (`fedilc serve`, `fedilc join`)": (_rest, "rest"),
        "NVIDIA FLARE, deployed, TLS": (_nvflare, nvflare),
    }
    if flower_python is not None:
        found["Flower, SuperLink and SuperNodes"] = (lambda folder: _flower(folder, flower_python), "run")
    return found


def main() -> None:
    """Measure each, and print."""
    python = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else None
    print("| runtime | seconds per round | MB per round |\n|---|---:|---:|", flush=True)
    for name, (job, run) in jobs(python).items():
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            with Loopback(folder / run / "timing.jsonl") as loopback:
                job(folder)
            seconds = seconds_per_round(folder / run)
            print(f"| {name} | {seconds:.3g} | {loopback.bytes_per_round() / 1e6:.2f} |", flush=True)


def _rank(out: str) -> None:
    """What each of two ranks does."""
    with joined_group():
        train(federation(SILOS), color_mnist_mlp(), ALGORITHM, rounds=ROUNDS, **SETTINGS, out=out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        _rank(sys.argv[2])
    else:
        main()
