"""What all compiled loops share: how numba compiles them, their tiles, and floats seen as bits.

Each loop runs over a tile of 1024 coordinates that stays in the processor's nearest cache, and is written
so that the compiler can do eight coordinates at once: no branches, bits instead of library functions. No
`fastmath`: a fused multiplication and addition would give other bits than torch.

The functions have no type annotations: numba infers their types. It keeps compiled code until the file of
the loop changes: after a change here or in `sums/fixed_point.py`, touch `values.py` and `logs.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(inline="always", **OPTIONS)
def bits_of(value):
    """Return the bits of a float64: sign, 11 bits of exponent, 52 of mantissa."""
    return np.float64(value).view(np.int64)


@njit(inline="always", **OPTIONS)
def float_of(bits):
    """Return the float64 of these bits."""
    return np.int64(bits).view(np.float64)
