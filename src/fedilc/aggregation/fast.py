"""Torch tensors into the compiled kernels: addresses, threads, and a compilation nobody waits for.

What these functions give does not depend on the number of threads; how rows are grouped changes no more than
roundings in float64.
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Rows = Tensor | Sequence[Tensor]
_VALUES_A_THREAD = 1 << 16
_RANGES_A_THREAD = 8


def prepare() -> None:
    """Begin to load (the first time ever: to compile) the kernels while the caller goes on."""
    threading.Thread(target=_kernels, daemon=True).start()


_loading = threading.Lock()


@cache
def _kernels() -> ModuleType:
    with _loading:
        try:
            return import_module("fedilc.aggregation.kernels")
        except RuntimeError:
            # numba found no folder to keep compiled code in; any writable one will do.
            os.environ.setdefault("NUMBA_CACHE_DIR", tempfile.gettempdir())
            return import_module("fedilc.aggregation.kernels")


def suits(tensor: Tensor) -> bool:
    """Whether the kernels can take this tensor; others go through plain torch."""
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def stacked(rows: Rows, zeros: str, agreement: float) -> tuple[Tensor, float, bool]:
    """wgm of rows of one size, the mean of |mean(sign)| over coordinates, and whether all was finite."""
    kernels = _kernels()
    flat, addresses, steps = _addresses(rows)
    count, size = len(flat), flat[0].numel()
    out = torch.empty(size)
    least = _least(agreement, count)
    arguments = (addresses, steps, count, kernels.ZEROS[zeros], least, out.numpy())
    few = count <= kernels.GROUP and zeros != "authors"
    results = _in_threads(kernels.stacked_few if few else kernels.stacked, size, count, *arguments)
    agreed = sum(agreed for _, agreed in results) / (count * max(1, size))
    return out, agreed, all(finite for finite, _ in results)


def add_rows(rows: Rows, sums: Mapping[str, Tensor]) -> bool:
    """Add rows to the five sums, in place; says whether all was finite."""
    flat, addresses, steps = _addresses(rows)
    size = flat[0].numel()
    return all(_in_threads(_kernels().add_rows, size, len(flat), addresses, steps, *_five(sums)))


def finish(
    count: int, sums: Mapping[str, Tensor], rows: Rows, zeros: str, agreement: float
) -> tuple[Tensor, float, bool]:
    """What `stacked` gives, from the five sums and rows that are not in them yet: `count` values in all."""
    kernels = _kernels()
    flat, addresses, steps = _addresses(rows)
    out = torch.empty(sums["positives"].shape)
    size = out.numel()
    options = (count, kernels.ZEROS[zeros], _least(agreement, count), out.view(-1).numpy())
    results = _in_threads(kernels.finish, size, 8 + len(flat), addresses, steps, *_five(sums), *options)
    agreed = sum(agreed for _, agreed in results) / (count * max(1, size))
    return out, agreed, all(finite for finite, _ in results)


def _least(agreement: float, count: int) -> float:
    """The least |P - N| for which |P - N| / count >= agreement."""
    least = math.floor(agreement * count)
    while least / count < agreement:
        least += 1
    while least > 0 and (least - 1) / count >= agreement:
        least -= 1
    return float(least)


def _five(sums: Mapping[str, Tensor]) -> list[NDArray[Any]]:
    keys = ("positives", "negatives", "log_positive", "log_negative")
    return [sums[key].view(-1).numpy() for key in keys]


def _addresses(rows: Rows) -> tuple[Rows, NDArray[np.int64], NDArray[np.int64]]:
    """The rows made flat, their addresses in whole groups, and bytes from one value to the next.

    What is missing from the last group is a tile of zeros that is read again and again.
    """
    missing = -len(rows) % _kernels().GROUP
    if isinstance(rows, Tensor):
        rows = rows.detach().contiguous()
        places = rows.data_ptr() + 4 * rows[0].numel() * np.arange(len(rows), dtype=np.int64)
    else:
        rows = [row.detach().reshape(-1).contiguous() for row in rows]
        places = np.array([row.data_ptr() for row in rows], dtype=np.int64)
    addresses = np.concatenate([places, np.full(missing, _zeros().data_ptr(), dtype=np.int64)])
    return rows, addresses, np.repeat(np.array([4, 0]), [len(rows), missing])


@cache
def _zeros() -> Tensor:
    return torch.zeros(_kernels().TILE)


def _in_threads(kernel: Callable[..., Any], size: int, rows: int, *arguments: Any) -> list[Any]:
    """The kernel's results for consecutive ranges of coordinates.

    Each thread takes the next range when it has done one: another thread of the process may keep a core
    busy (torch's own workers spin for a while after each operation), and nobody waits for the slower half.
    """
    threads = min(torch.get_num_threads(), max(1, size * rows // _VALUES_A_THREAD))
    tile = _kernels().TILE
    step = size if threads == 1 else max(1, math.ceil(size / threads / _RANGES_A_THREAD / tile)) * tile
    ranges = iter([(start, min(start + step, size)) for start in range(0, size, step or 1)] or [(0, 0)])

    def work() -> list[Any]:
        return [kernel(*place, *arguments) for place in ranges]

    others = [_pool().submit(work) for _ in range(threads - 1)]
    return work() + [result for other in others for result in other.result()]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), thread_name_prefix="fedilc-kernel")
