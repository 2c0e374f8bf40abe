"""The one door to the compiled loops: which tensors they take, and on how many threads they run.

What they give does not depend on the number of threads: integers are added, and coordinates are independent.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from fedilc import loops

_COMPILED = "fedilc.aggregation._kernels.compiled"
_RANGES_PER_THREAD = 8


def usable(tensor: Tensor) -> bool:
    """Return whether the loops can take this tensor; others go through plain torch."""
    return tensor.device.type == "cpu"


def load() -> None:
    """Load the loops now, so that the first round does not wait for them."""
    loops.load(_COMPILED)


def run(kernel: str, size: int, rows: int, *arguments: Any) -> list[Any]:
    """Return a kernel's results for ranges of `size` columns; several threads share large work."""
    compiled = loops.load(_COMPILED)
    threads = loops.threads_for(size * rows)
    step = size
    if threads > 1:
        step = max(1, math.ceil(size / threads / _RANGES_PER_THREAD / compiled.TILE)) * compiled.TILE
    ranges = [(start, min(start + step, size)) for start in range(0, size, step)] if size else [(0, 0)]
    return loops.share(getattr(compiled, kernel), ranges, threads, *arguments)
