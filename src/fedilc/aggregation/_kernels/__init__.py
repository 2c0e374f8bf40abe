"""The one door to the compiled loops: which tensors they take, and on how many threads they run.

What they give does not depend on the number of threads: integers are added, and coordinates are independent.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from fedilc.aggregation import loops

TILE = 1024
_RANGES_PER_THREAD = 8


def usable(tensor: Tensor) -> bool:
    """Return whether the loops can take this tensor; others go through plain torch."""
    return tensor.device.type == "cpu"


def load() -> None:
    """Load the loops now, so that the first round does not wait for them."""
    for module in ("values", "logs"):
        loops.load(f"{__name__}.{module}")


def run(kernel: str, size: int, rows: int, *arguments: Any) -> list[Any]:
    """Return the results of a kernel, as in "logs.spill", for ranges of `size` columns, in whole tiles.

    Threads share large work: `rows` values per column.
    """
    threads = loops.threads_for(size * rows)
    step = max(1, math.ceil(size / threads / _RANGES_PER_THREAD / TILE)) * TILE if threads > 1 else size
    return _share(kernel, size, step, threads, *arguments)


def run_rows(kernel: str, size: int, values: int, *arguments: Any) -> list[Any]:
    """Return a kernel's results for ranges of `size` rows of `values` each, as long as threads allow."""
    threads = loops.threads_for(size * values)
    return _share(kernel, size, math.ceil(size / threads / 2) if threads > 1 else size, threads, *arguments)


def _share(kernel: str, size: int, step: int, threads: int, *arguments: Any) -> list[Any]:
    ranges = [(start, min(start + step, size)) for start in range(0, max(1, size), max(1, step))]
    module, name = kernel.split(".")
    return loops.share(getattr(loops.load(f"{__name__}.{module}"), name), ranges, threads, *arguments)
