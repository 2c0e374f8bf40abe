"""Compiled loops: how they are loaded, and how several threads share their work."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

_VALUES_PER_THREAD = 1 << 16


@cache
def load(module: str) -> ModuleType:
    """Return a module of loops, loaded from disk or, the first time on this machine, compiled."""
    try:
        return import_module(module)
    except RuntimeError:
        # numba found no folder to keep compiled code in; any writable one will do.
        os.environ.setdefault("NUMBA_CACHE_DIR", tempfile.gettempdir())
        return import_module(module)


def threads_for(values: int) -> int:
    """Return how many threads are worth their start for so many values."""
    return min(torch.get_num_threads(), max(1, values // _VALUES_PER_THREAD))


def share(
    function: Callable[..., Any], ranges: Iterable[tuple[int, int]], threads: int, *arguments: Any
) -> list[Any]:
    """Return a loop's results for each range (start, stop), in no particular order.

    Each thread takes the next range when it has done one: another thread of the process may keep a core
    busy (torch's own workers spin for a while after each operation), and nobody waits for the slower half.
    """
    waiting = iter(list(ranges))

    def work() -> list[Any]:
        return [function(*place, *arguments) for place in waiting]

    others = [_pool().submit(work) for _ in range(threads - 1)]
    return work() + [result for other in others for result in other.result()]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), thread_name_prefix="fedilc-kernel")
