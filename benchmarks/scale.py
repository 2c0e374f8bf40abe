"""How runtimes scale: one table of seconds per round and memory, each row with the load of the machine.

    python -m benchmarks.scale --out results/scale [--flower PYTHON] [--only http ranks] [--small]

ranks      1 to 4 ranks of `torchrun` over silos of Color-MNIST's size
disk       thousands of silos, each read from a file of its own when it computes, on one rank and on two
http       hundreds of silos that compute nothing, at one coordinator over HTTP
runtimes   three silos on each runtime (see `runtimes.py`)

Everything is on loopback with one thread per process. A measurement that takes longer than `--limit` seconds
is ended with its processes, and its row says so. Load is what the machine had to do in the last minute when a
row began, its own last row included: above the number of cores, times are too long.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ranks, runtimes
from benchmarks.processes import MIB, finish, memory, started, url_of
from benchmarks.travel import WARM_UP, write_experiment
from fedilc import __version__

LIGHT = {"learning_rate": 3e-4, "penalty_weight": 15.0, "algorithm": "fishr-inter-geo"}
LIMIT_SECONDS = 240.0


@dataclass(frozen=True)
class Timed:
    """One row: what was measured, seconds of rounds, the peak of memory, MB on loopback, and the load."""

    what: str
    seconds: tuple[float, ...] = ()
    peak: int | None = None
    megabytes: float | None = None
    load: float = 0.0
    failed: str = ""

    def line(self) -> str:
        """Return it as a row of Markdown."""
        if self.failed:
            return f"| {self.what} | {self.failed} | | | | | {self.load:.1f} |"
        middle, high = np.quantile(self.seconds, (0.5, 0.99))
        peak = "" if self.peak is None else f"{self.peak / MIB:.0f} MiB"
        bytes_ = "" if self.megabytes is None else f"{self.megabytes:.1f}"
        cells = (f"{middle:.3g}", f"{high:.3g}", str(len(self.seconds)), peak, bytes_)
        return f"| {self.what} | {' | '.join(cells)} | {self.load:.1f} |"


Part = Callable[[argparse.Namespace], Iterator[Timed]]


def of_ranks(how: argparse.Namespace) -> Iterator[Timed]:
    """Measure 1 to 4 ranks."""
    silos, rounds = (2, 4) if how.small else (4, 6)
    for count in (1, 2) if how.small else (1, 2, 3, 4):
        job = {"job": "color", "silos": silos, "rounds": rounds, "ranks": count}
        yield _ranked(f"{count} rank{'s' * (count > 1)}, {silos} silos of Color-MNIST's size", job, how.limit)


def of_files(how: argparse.Namespace) -> Iterator[Timed]:
    """Measure thousands of silos from disk."""
    silos = 200 if how.small else 10_000
    for count in (1, 2):
        job = {"job": "many", "silos": silos, "rounds": 3, "ranks": count}
        yield _ranked(f"{count} rank{'s' * (count > 1)}, {silos:,} silos from disk", job, how.limit)


def _ranked(what: str, job: dict[str, Any], limit: float) -> Timed:
    load = os.getloadavg()[0]
    try:
        found = ranks.measured(job, limit)
    except subprocess.TimeoutExpired:
        return Timed(what, load=load, failed=f"not done in {limit:.0f} s")
    return Timed(what, tuple(found.all_seconds), int(found.peak), load=load)


def of_http(how: argparse.Namespace) -> Iterator[Timed]:
    """Measure hundreds of light silos at one coordinator."""
    for silos in (5,) if how.small else how.silos:
        what = f"HTTP, {silos:,} silos that compute nothing"
        load, rounds = os.getloadavg()[0], 6 if how.small else 30
        names = [f"silo-{number}" for number in range(silos)]
        with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
            folder = Path(place)
            settings = LIGHT | {"rounds": rounds, "evaluate_every": rounds}
            write_experiment(folder / "light.toml", names, settings)
            with (folder / "light.toml").open("a") as file:
                file.write('[model]\nname = "mlp"\nhidden = [32]\n')
            options = ["--insecure", "--port", "0", "--out", folder / "run"]
            coordinator = stack.enter_context(started("fedilc", "serve", folder / "light.toml", *options))
            url = url_of(coordinator)
            for part in range(2):
                stack.enter_context(started("benchmarks.attacks", "silos", url, 0, *names[part::2]))
            deadline, peak = time.monotonic() + how.limit, 0
            while coordinator.poll() is None and time.monotonic() < deadline:
                peak = max(peak, memory("VmHWM", coordinator.pid))
                time.sleep(0.2)
            if coordinator.poll() is not None:
                finish(coordinator)
            seconds = _rounds(folder / "run" / "timing.jsonl")
        failed = "" if seconds else f"no round in {how.limit:.0f} s"
        yield Timed(what, seconds, peak, load=load, failed=failed)


def of_runtimes(how: argparse.Namespace) -> Iterator[Timed]:
    """Measure three silos on each runtime."""
    jobs = runtimes.jobs(how.flower)
    for name in list(jobs)[: 1 if how.small else None]:
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as place:
            run = Path(place) / jobs[name][1]
            with runtimes.Loopback(run / "timing.jsonl") as loopback, _limited(how.limit):
                failed = ""
                try:
                    jobs[name][0](Path(place))
                except TimeoutError:
                    failed = f"not done in {how.limit:.0f} s"
            seconds = _rounds(run / "timing.jsonl")
            carried = None if failed else loopback.bytes_per_round() / 1e6
        yield Timed(f"3 small silos, {name}", seconds, None, carried, load, failed)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer; it ends the processes that it started."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _rounds(timing: Path) -> tuple[float, ...]:
    """Return the seconds of a run's rounds, without the first, which also wait for silos and kernels."""
    lines = timing.read_text().splitlines()[WARM_UP:] if timing.exists() else []
    return tuple(json.loads(line)["seconds"] for line in lines)


PARTS: dict[str, Part] = {"ranks": of_ranks, "disk": of_files, "http": of_http, "runtimes": of_runtimes}
HEAD = "| what | seconds per round, median | p99 | rounds | peak memory | MB per round | load |\n|---|" + (
    "---:|" * 6
)


def main() -> None:
    """Measure the parts asked for; the table is written after each row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--flower", type=lambda text: Path(text).absolute(), help="Python with Flower")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--silos", type=int, nargs="+", default=[300, 1000], help="over HTTP")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="most seconds per row")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the command")
    how = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # processes that were started end as well
    how.out.mkdir(parents=True, exist_ok=True)
    path = how.out / "scale.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    for name in how.only:
        for row in PARTS[name](how):
            print(row.line(), flush=True)
            found[row.what] = {**asdict(row), "version": __version__, "cores": os.cpu_count()}
            path.write_text(json.dumps(found, indent=1) + "\n")
            rows = [
                Timed(**{k: v for k, v in one.items() if k not in ("version", "cores")})
                for one in found.values()
            ]
            (how.out / "table.md").write_text("\n".join([HEAD, *(one.line() for one in rows)]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
