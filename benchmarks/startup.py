"""What it costs to start: commands beside `import torch` in processor time, and the kernels' first call."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from benchmarks.timing import Row, at_most

KERNELS = (
    "import time, torch; from fedilc import weighted_geometric_mean; start = time.perf_counter(); "
    "weighted_geometric_mean(torch.ones(6, 8)); "
    "print(time.perf_counter() - start)"
)


SERVERS = ("fastapi", "starlette", "uvicorn")
JOIN = (
    "import sys, fedilc.runtimes.rest.participant, fedilc.runtimes.remote.silo_client; "
    f"print(*(name for name in {SERVERS} if name in sys.modules))"
)
COMMANDS = {
    "torch": ("-c", "import torch"),
    "help": ("-m", "fedilc", "--help"),
    "list": ("-m", "fedilc", "list"),
    "run": ("-m", "fedilc", "run", "--rounds", "1"),
    "join": ("-c", JOIN),
}


def rows(quick: bool) -> list[Row]:
    """Return the processor time of commands from start to end, on one thread, and that of the kernels."""
    seconds = _processor_seconds(COMMANDS, repeats=3 if quick else 9)
    torch = seconds["torch"]
    beside = f"import torch {torch:.2f} s"
    servers = _run(COMMANDS["join"], ".").stdout.split()
    loaded = f"loads {', '.join(servers)}" if servers else "loads no server"
    return [
        at_most("start", "fedilc --help", "0.5 s", seconds["help"] / 0.5, 1, f"{seconds['help']:.2f} s"),
        at_most("start", "fedilc list", "1 s", seconds["list"], 1, f"{seconds['list']:.2f} s"),
        at_most(
            *("start", "fedilc run --rounds 1", "import torch", seconds["run"] / torch, 2),
            f"{seconds['run']:.2f} s; {beside}",
        ),
        Row(
            *("start", "imports of fedilc join", "import torch", seconds["join"] / torch, "no server"),
            met=not servers,
            detail=f"{seconds['join']:.2f} s; {beside}; {loaded}",
        ),
        _kernels(),
    ]


def _processor_seconds(commands: Mapping[str, tuple[str, ...]], repeats: int) -> dict[str, float]:
    """Return the median processor time (user and system) of each command, in turns after a first run."""
    found: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(repeats + 1):
            for name, words in commands.items():
                before = os.times()
                _run(words, folder)
                after = os.times()
                if number:
                    user = after.children_user - before.children_user
                    found[name].append(user + after.children_system - before.children_system)
    return {name: statistics.median(values) for name, values in found.items()}


def _run(words: tuple[str, ...], folder: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=environment)


def _kernels() -> Row:
    """What a first call costs: `make` compiles, and a run loads from disk."""
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = (_first_call(os.environ | {"NUMBA_CACHE_DIR": folder}) for _ in range(2))
    detail = f"compiled {cold:.1f} s (once, at installation), from disk {warm:.1f} s"
    return Row("start", "kernels, first call", "from disk", cold / warm, "-", True, detail)


def _first_call(environment: dict[str, str]) -> float:
    command = [sys.executable, "-c", KERNELS]
    return float(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
