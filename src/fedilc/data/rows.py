"""Hashes of rows: which examples occur in two places, and whether chance explains it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.int64]
_CHUNK = 1 << 14


def row_hashes(x: NDArray[np.generic], y: NDArray[np.generic]) -> Hashes:
    """Return a 64-bit hash of each example's inputs and label; equal examples have equal hashes.

    They are compared only inside this process: another one gives other hashes.
    """
    found = np.empty(len(x), dtype=np.int64)
    for start in range(0, len(x), _CHUNK):
        part = slice(start, start + _CHUNK)
        block = _rows(x[part], y[part])
        raw, width = block.tobytes(), block.shape[1] * block.itemsize
        found[part] = [hash(raw[place : place + width]) for place in range(0, len(raw), width)]
    return found


def _rows(x: NDArray[np.generic], y: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return inputs and label as one matrix; adding 0 makes -0 the same as 0."""
    columns = x.reshape(len(x), -1).astype(np.float32), y.astype(np.float32)[:, None]
    return np.concatenate(columns, axis=1) + np.float32(0)


def same_rows(one: Hashes, other: Hashes) -> bool:
    """Whether two sets of examples are the same, in whatever order."""
    return len(one) == len(other) and bool((np.sort(one) == np.sort(other)).all())


def sample_rows(x: NDArray[np.generic], y: NDArray[np.generic], most: int) -> NDArray[np.float32]:
    """Return some rows from all over a set of examples, as `chance` takes them."""
    step = max(1, len(x) // most)
    return _rows(x[::step][:most], y[::step][:most])


def chance(samples: Sequence[NDArray[np.float32]]) -> float:
    """Return how likely it is that two examples are equal by chance, if columns are independent.

    Rows of a few yes/no columns are often equal; rows with measurements are not.
    """
    rows = np.concatenate(samples)
    probability = 1.0
    for column in rows.T:
        counts = np.unique(column, return_counts=True)[1]
        probability *= float((counts * (counts - 1)).sum()) / (len(column) * max(1, len(column) - 1))
        if probability < 1e-12:
            break
    return probability
