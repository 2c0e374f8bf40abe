"""The inconsistency score by its definition, for models of two parameters: a search over epsilon-sets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import label

Surface = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def epsilon_score(
    one: Surface, other: Surface, at: tuple[float, float], epsilon: float, reach: tuple[float, float]
) -> float:
    """I(w) of Parascandolo et al.: the most that a step which costs one silo epsilon may cost the other.

    Both losses are taken on a grid of `reach` around w, as functions of points (..., 2). The set of A is the
    connected part around w of the points where A's loss is at most epsilon from that at w.
    """
    steps = np.linspace(-1, 1, 801)
    points = np.stack(np.meshgrid(at[0] + reach[0] * steps, at[1] + reach[1] * steps, indexing="ij"), -1)
    middle = (len(steps) // 2,) * 2
    losses = [loss(points) - loss(np.array(at)) for loss in (one, other)]
    worst = 0.0
    for here, there in (losses, losses[::-1]):
        parts, _ = label(np.abs(here) <= epsilon)
        inside = parts == parts[middle]
        edge = np.zeros_like(inside)
        edge[[0, -1]] = edge[:, [0, -1]] = True
        assert not (inside & edge).any(), "the set leaves the grid; reach further"
        worst = max(worst, float(np.abs(there[inside]).max()))
    return worst
