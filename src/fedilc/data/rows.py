"""Hashes of rows: which examples occur in two places, and whether chance explains it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.int64]
_CHUNK = 1 << 14


def row_hashes(x: NDArray[np.float32]) -> Hashes:
    """Return a 64-bit hash of each example's inputs; equal inputs have equal hashes.

    They are compared only inside this process: another one gives other hashes.
    """
    found = np.empty(len(x), dtype=np.int64)
    for start in range(0, len(x), _CHUNK):
        block = _rows(x[start : start + _CHUNK])
        raw, width = block.tobytes(), block.shape[1] * block.itemsize
        found[start : start + _CHUNK] = [
            hash(raw[place : place + width]) for place in range(0, len(raw), width)
        ]
    return found


def with_labels(hashes: Hashes, y: NDArray[np.float32]) -> Hashes:
    """Return hashes of inputs and labels together."""
    bits = (y.astype(np.float32) + np.float32(0)).view(np.int32).astype(np.int64)
    return hashes ^ (bits * np.int64(0x9E3779B97F4A7C1))


def _rows(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return inputs as a matrix; adding 0 makes -0 the same as 0."""
    return x.reshape(len(x), -1) + np.float32(0)


def same_rows(one: Hashes, other: Hashes) -> bool:
    """Whether two sets of examples are the same, in whatever order."""
    return len(one) == len(other) and bool((np.sort(one) == np.sort(other)).all())


def sample_rows(x: NDArray[np.float32], most: int) -> NDArray[np.float32]:
    """Return some rows from all over a set of examples, as `chance` takes them."""
    return _rows(x[:: max(1, len(x) // most)][:most])


def chance(samples: Sequence[NDArray[np.float32]]) -> float:
    """Return how likely two examples have equal inputs by chance, if columns are independent.

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
