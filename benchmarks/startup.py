"""How long the command takes to say what it is, and the kernels to be ready."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from benchmarks.timing import Row, medians

KERNELS = (
    "import time, torch; from fedilc.aggregation import fast; start = time.perf_counter(); "
    "fast.stacked(torch.ones(6, 8), 'ignore', 0.0); fast.stacked(torch.ones(2, 8), 'ignore', 0.0); "
    "print(time.perf_counter() - start)"
)


def rows(quick: bool) -> list[Row]:
    """`fedilc --help` in seconds, beside a bare interpreter; the kernels' first call, old and new."""
    command = [sys.executable, "-m", "fedilc", "--help"]
    bare = [sys.executable, "-c", "pass"]
    actions = {
        "help": lambda: subprocess.run(command, check=True, capture_output=True),
        "python": lambda: subprocess.run(bare, check=True, capture_output=True),
    }
    seconds = medians(actions, repeats=3 if quick else 9)
    found = seconds["help"]
    detail = f"{found:.2f} s; python alone {seconds['python']:.2f} s"
    help_ = Row("start", "fedilc --help", "0.5 s", found / 0.5, "<= 1", found <= 0.5, detail)
    return [help_, _kernels()]


def _kernels() -> Row:
    """What a first call costs where nothing hides it: `make` compiles, and a run loads in the background."""
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = (_first_call(os.environ | {"NUMBA_CACHE_DIR": folder}) for _ in range(2))
    detail = f"compiled {cold:.1f} s (once, at installation), from disk {warm:.1f} s (in the background)"
    return Row("start", "kernels, first call", "from disk", cold / warm, "-", True, detail)


def _first_call(environment: dict[str, str]) -> float:
    command = [sys.executable, "-c", KERNELS]
    return float(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
