"""How long the command takes to say what it is."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.timing import Row, medians


def rows(quick: bool) -> list[Row]:
    """`fedilc --help` in seconds, beside a bare interpreter."""
    command = [sys.executable, "-m", "fedilc", "--help"]
    bare = [sys.executable, "-c", "pass"]
    actions = {
        "help": lambda: subprocess.run(command, check=True, capture_output=True),
        "python": lambda: subprocess.run(bare, check=True, capture_output=True),
    }
    seconds = medians(actions, repeats=3 if quick else 9)
    found = seconds["help"]
    detail = f"{found:.2f} s; python alone {seconds['python']:.2f} s"
    return [Row("start", "fedilc --help", "0.5 s", found / 0.5, "<= 1", found <= 0.5, detail)]
