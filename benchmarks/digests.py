"""Digests of weights and history of every algorithm of the paper on several runtimes, to compare two commits.

    python -m benchmarks.digests [ALGORITHM ...]

trains `color-digits` for ten rounds with one thread per process, in one process, on two ranks and over HTTP,
and prints one line per algorithm and runtime. Bits differ between processors, so that the lines of two
commits are compared on one machine and kept nowhere. It uses the command alone, so that it runs on any commit
(`PYTHONPATH` names the sources to use).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file

PAPER = ("fedsgd", "geometric", "fedcurv", "fishr-intra-arith", "fishr-inter-geo", "fishr-intra-geo")
SILOS = [f"flip-{flip}" for flip in ("0.15", "0.30", "0.45", "0.60", "0.75")]
ROUNDS = "10"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def _fedilc(*words: str, python: tuple[str, ...] = (sys.executable,)) -> subprocess.Popen[str]:
    command = [*python, "-m", "fedilc", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=ENVIRONMENT, text=True, **pipes)


def _finish(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate(timeout=600)
    if process.returncode:
        raise SystemExit(f"{process.args} failed:\n{said}")


def local(algorithm: str, out: Path) -> None:
    """Train in one process."""
    _finish(_fedilc("run", "color-digits", "-a", algorithm, "--rounds", ROUNDS, "--out", str(out)))


def two_ranks(algorithm: str, out: Path) -> None:
    """Train on two ranks."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    _finish(
        _fedilc(
            "run", "color-digits", "-a", algorithm, "--rounds", ROUNDS, "--out", str(out), python=torchrun
        )
    )


def http(algorithm: str, out: Path) -> None:
    """Train with a coordinator and five silos."""
    words = ("serve", "color-digits", "-a", algorithm, "--rounds", ROUNDS, "--out", str(out))
    coordinator = _fedilc(*words, "--insecure", "--port", "0")
    assert coordinator.stdout is not None
    url = next(line.split()[3].rstrip(",") for line in coordinator.stdout if "silos join at" in line)
    joined = [_fedilc("join", url, "--silo", name, "--experiment", "color-digits") for name in SILOS]
    for process in (*joined, coordinator):
        _finish(process)


RUNTIMES: dict[str, Callable[[str, Path], None]] = {"local": local, "two ranks": two_ranks, "HTTP": http}


def digests(run: Path) -> tuple[str, str]:
    """Return the digests of the last weights and of the history of a run."""
    tensors = load_file(run / "checkpoint.safetensors")
    weights = hashlib.sha256()
    for name in sorted(name for name in tensors if name.startswith("weights.")):
        weights.update(name.encode() + tensors[name].contiguous().numpy().tobytes())
    history = hashlib.sha256((run / "history.jsonl").read_bytes())
    return weights.hexdigest()[:12], history.hexdigest()[:12]


def main() -> None:
    """Train each algorithm on each runtime and print its digests."""
    print(f"{'algorithm':20} {'runtime':10} weights      history")
    for algorithm in sys.argv[1:] or PAPER:
        for runtime, train in RUNTIMES.items():
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                train(algorithm, out)
                print(f"{algorithm:20} {runtime:10} {' '.join(digests(out))}", flush=True)


if __name__ == "__main__":
    main()
