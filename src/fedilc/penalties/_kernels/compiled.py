"""The loops of Fishr that numba compiles, for a classifier with one logit: each reads the features once.

The last element of a vector belongs to the bias, if it is longer than the features are wide. The functions
have no type annotations: numba infers their types.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fedilc.aggregation._kernels.values import OPTIONS


@njit("void(int64, int64, float32[:, ::1], float32[::1], int64, float64[:, :, ::1])", **OPTIONS)
def moments(start, stop, features, delta, block, sums):
    """Add g_i = delta_i (z_i, 1) and its square, for rows start..stop, to the sums of their block."""
    first, second = sums[start // block, 0], sums[start // block, 1]
    width = features.shape[1]
    for i in range(start, stop):
        d = np.float64(delta[i])
        row = features[i]
        for j in range(width):
            g = d * np.float64(row[j])
            first[j] += g
            second[j] += g * g
        if len(first) > width:
            first[width] += d
            second[width] += d * d


@njit(
    "void(int64, int64, float32[:, ::1], float32[::1], float32[::1], float32[::1], float32[:, ::1], "
    "float32[::1])",
    fastmath={"reassoc", "contract"},
    **OPTIONS,
)
def start_gradients(start, stop, features, delta, vector, weighted, at_features, at_delta):
    """Carry v (g_i - m) on to z_i and delta_i, for rows start..stop; `weighted` is v m.

    `fastmath` lets the compiler add up a row in as many parts as the processor adds at once.
    """
    width = features.shape[1]
    for i in range(start, stop):
        d = delta[i]
        row, out = features[i], at_features[i]
        along, across = np.float32(0), np.float32(0)
        for j in range(width):
            z = row[j]
            vz = vector[j] * z
            out[j] = d * (d * vz - weighted[j])
            along += vz * z
            across += weighted[j] * z
        if len(vector) > width:
            along += vector[width]
            across += weighted[width]
        at_delta[i] = d * along - across
