"""Net benefit, calibration curves and their bands by definition: loops, a generic optimiser, differences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize

Floats = NDArray[np.float64]


def counted_net_benefit(y: Sequence[int], risks: Sequence[float], threshold: float) -> float:
    """TP/n - FP/n * p/(1-p), by counting."""
    true = sum(1 for label, risk in zip(y, risks, strict=True) if risk >= threshold and label == 1)
    false = sum(1 for label, risk in zip(y, risks, strict=True) if risk >= threshold and label == 0)
    return true / len(y) - false / len(y) * threshold / (1 - threshold)


def natural_basis(z: Floats, knots: Sequence[float]) -> Floats:
    """A basis of the natural cubic splines with these knots: interpolations of unit vectors.

    It spans the same curves as any other basis of restricted cubic splines, and shares no formula with it.
    """
    first, last = knots[0], knots[-1]
    columns = []
    for place in range(len(knots)):
        spline = CubicSpline(knots, np.eye(len(knots))[place], bc_type="natural")
        inside = spline(np.clip(z, first, last))
        below = np.minimum(z - first, 0.0) * spline(first, 1)
        above = np.maximum(z - last, 0.0) * spline(last, 1)
        columns.append(inside + below + above)
    return np.stack(columns, axis=1)


def fitted_curve(y: Floats, z: Floats, knots: Sequence[float], at: Floats) -> tuple[Floats, Floats]:
    """Log odds of a natural spline fitted to y at some logits, and their standard errors.

    The fit is by a generic optimiser; the information is the second difference of the loss.
    """
    rows = natural_basis(z, knots)

    def loss(beta: Floats) -> float:
        eta = rows @ beta
        return float(
            sum(math.log1p(math.exp(-abs(e))) + max(e, 0) - t * e for e, t in zip(eta, y, strict=True))
        )

    size = rows.shape[1]
    beta = minimize(loss, np.zeros(size), method="BFGS", options={"gtol": 1e-7}).x
    step, units = 1e-3, np.eye(size)
    information = np.array(
        [
            [
                sum(
                    one * other * loss(beta + step * (one * units[i] + other * units[j]))
                    for one in (1, -1)
                    for other in (1, -1)
                )
                / (4 * step**2)
                for j in range(size)
            ]
            for i in range(size)
        ]
    )
    points = natural_basis(at, knots)
    variance = np.linalg.inv(information)
    return points @ beta, np.sqrt(np.array([point @ variance @ point for point in points]))


def looped_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """(m1 - m0) / sqrt((s1^2 + s0^2) / 2), with variances over n, by loops."""
    means = [sum(values) / len(values) for values in (one, other)]
    squares = [
        sum((value - mean) ** 2 for value in values) / len(values)
        for values, mean in zip((one, other), means, strict=True)
    ]
    return (means[0] - means[1]) / math.sqrt(sum(squares) / 2)


def paired_area(sites: Sequence[tuple[Sequence[int], Sequence[float]]]) -> float:
    """The share of pairs of an event and a non-event of one site that are in order; ties count half."""
    right, pairs = 0.0, 0
    for y, values in sites:
        for label, value in zip(y, values, strict=True):
            for other_label, other in zip(y, values, strict=True):
                if label == 1 and other_label == 0:
                    pairs += 1
                    right += 1.0 if value > other else 0.5 if value == other else 0.0
    return right / pairs
