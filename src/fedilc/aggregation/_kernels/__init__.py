"""The one door to the compiled loops: which tensors they take, and on how many threads they run.

What they give does not depend on the number of threads: integers are added, and coordinates are independent.
"""

from __future__ import annotations

import math
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

_VALUES_PER_THREAD = 1 << 16
_RANGES_PER_THREAD = 8


def usable(tensor: Tensor) -> bool:
    """Return whether the loops can take this tensor; others go through plain torch."""
    return tensor.device.type == "cpu"


@cache
def _loops() -> ModuleType:
    """Return the loops, loaded from disk or, the first time on this machine, compiled."""
    try:
        return import_module("fedilc.aggregation._kernels.compiled")
    except RuntimeError:
        # numba found no folder to keep compiled code in; any writable one will do.
        os.environ.setdefault("NUMBA_CACHE_DIR", tempfile.gettempdir())
        return import_module("fedilc.aggregation._kernels.compiled")


def load() -> None:
    """Load the loops now, so that the first round does not wait for them."""
    _loops()


def run(kernel: str, size: int, rows: int, *arguments: Any) -> list[Any]:
    """Return a kernel's results for consecutive ranges of `size` columns; several threads share large work.

    Each thread takes the next range when it has done one: another thread of the process may keep a core
    busy (torch's own workers spin for a while after each operation), and nobody waits for the slower half.
    """
    function = getattr(_loops(), kernel)
    threads = min(torch.get_num_threads(), max(1, size * rows // _VALUES_PER_THREAD))
    if threads == 1:
        return [function(0, size, *arguments)]
    tile = _loops().TILE
    step = max(1, math.ceil(size / threads / _RANGES_PER_THREAD / tile)) * tile
    ranges = iter([(start, min(start + step, size)) for start in range(0, size, step)])

    def work() -> list[Any]:
        return [function(*place, *arguments) for place in ranges]

    others = [_pool().submit(work) for _ in range(threads - 1)]
    return work() + [result for other in others for result in other.result()]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), thread_name_prefix="fedilc-kernel")
