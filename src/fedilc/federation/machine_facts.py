"""What the last digits of a run depend on besides settings: versions, threads, processor, instruction set."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedilc import __version__


def machine_facts() -> dict[str, Any]:
    """Return what this process computes with: no part of a run's identity, but it may change last bits."""
    return {
        "python": platform.python_version(),
        "fedilc": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "numba": version("numba"),
        "threads": torch.get_num_threads(),
        "processor": _processor(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
    }


def command_line() -> str:
    """Return the command that started this process, as it is typed in a shell."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name.removesuffix(".exe")
    return shlex.join([name, *sys.argv[1:]])


def changed_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in words what has changed; "" if nothing has.

    >>> changed_facts({"torch": "2.4", "threads": 2}, {"torch": "2.5", "threads": 2})
    'torch 2.4, now 2.5'
    """
    return "; ".join(f"{key} {before.get(key)}, now {now[key]}" for key in now if before.get(key) != now[key])


@cache
def _processor() -> str:
    """Return the processor's model as Linux names it, or what Python knows elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
