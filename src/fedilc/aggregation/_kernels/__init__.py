"""Call the compiled loops: which tensors they take, how they are loaded, how threads share their work.

Results do not depend on the number of threads: integers are added, and coordinates are independent.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

TILE = 1024
_VALUES_PER_THREAD = 1 << 16


def usable(tensor: Tensor) -> bool:
    """Return whether the loops can take this tensor; others go through plain torch.

    Sums and means have the same bits either way; products that are never stored
    (`SignedLogs.add_products`) may differ in their last bit, because torch adds their terms in another order.
    """
    return tensor.device.type == "cpu" and installed()


@cache
def installed() -> bool:
    """Return whether numba is installed to compile the loops; plain torch is several times slower."""
    return find_spec("numba") is not None


def load() -> None:
    """Load the loops now, so that the first round does not wait for them."""
    for module in ("values", "logs") if installed() else ():
        _module(f"{__name__}.{module}")


def run(kernel: str, size: int, rows: int, *arguments: Any, tile: int = TILE, ranges: int = 8) -> list[Any]:
    """Return the results of a kernel, as in "logs.spill", for ranges of `size` columns, in whole tiles.

    Threads share large work (`rows` values per column): each thread gets about `ranges` ranges.
    """
    threads = threads_for(size * rows)
    if threads == 1:
        return [_function(f"{__name__}.{kernel}")(0, size, *arguments)]
    step = max(1, math.ceil(size / threads / ranges / tile)) * tile
    cut = [(start, min(start + step, size)) for start in range(0, max(1, size), step)]
    return share(f"{__name__}.{kernel}", cut, threads, *arguments)


def run_ranges(kernel: str, ranges: list[tuple[int, int]], values: int, *arguments: Any) -> None:
    """Run a kernel for given ranges of columns, which hold about this many values."""
    share(f"{__name__}.{kernel}", ranges, min(len(ranges), threads_for(values)), *arguments)


def threads_for(values: int) -> int:
    """Return how many threads to use for this many values, so that each is worth its start."""
    return min(torch.get_num_threads(), max(1, values // _VALUES_PER_THREAD))


def share(kernel: str, ranges: Iterable[tuple[int, int]], threads: int, *arguments: Any) -> list[Any]:
    """Return the results of a kernel, by its full name, for each range (start, stop), in no particular order.

    Each thread takes the next range when it has finished one: another thread of the process may keep a core
    busy (torch's own workers spin for a while after each operation), and no thread waits for a slower one.
    """
    function = _function(kernel)
    # All threads draw from one iterator. That of a list is safe: the interpreter lock covers each `next`, and
    # a kernel releases it only inside its loop.
    waiting = iter(list(ranges))

    def work() -> list[Any]:
        return [function(*place, *arguments) for place in waiting]

    others = [_pool().submit(work) for _ in range(threads - 1)]
    return work() + [result for other in others for result in other.result()]


@cache
def _function(kernel: str) -> Any:
    module, _, name = kernel.rpartition(".")
    return getattr(_module(module), name)


@cache
def _module(name: str) -> ModuleType:
    """Return a module of loops, loaded from disk or, the first time on this machine, compiled."""
    try:
        return import_module(name)
    except RuntimeError:
        # numba found no folder that it can keep compiled code in; any writable one will do.
        os.environ.setdefault("NUMBA_CACHE_DIR", tempfile.gettempdir())
        return import_module(name)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), thread_name_prefix="fedilc-kernel")
