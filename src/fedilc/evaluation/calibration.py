"""Calibration of binary predictions: whether the logits are too extreme, and too high or too low overall.

    slope       b of the logistic regression P(y = 1) = sigmoid(a + b z) of the label on the logit z;
                below 1 predictions are too extreme, above 1 too cautious.
    intercept   a of P(y = 1) = sigmoid(a + z), with the slope fixed at 1 (calibration in the large);
                below 0 risks are too high overall, above 0 too low.

A perfectly calibrated model has slope 1 and intercept 0. Neither is defined if only one class occurs, nor the
slope if the logits separate the classes or are all equal.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_STEPS, _TOLERANCE = 100, 1e-8  # Newton's steps square the error, so that the last one leaves about 1e-16


def calibration_slope(y: Floats, logits: Floats, counts: Floats | None = None) -> Floats:
    """Return the slope under each row of `counts`, the times that each example occurs; NaN if undefined.

    >>> calibration_slope(np.array([0.0, 1, 0, 1]), np.array([-2.0, -1, 1, 2])).round(4)
    array([0.4196])
    """
    return calibration_line(y, logits, counts)[:, 1]


def calibration_line(y: Floats, logits: Floats, counts: Floats | None = None) -> Floats:
    """Return a and b of P(y = 1) = sigmoid(a + b z) under each row of `counts`; NaN if undefined.

    >>> calibration_line(np.array([0.0, 1, 0, 1]), np.array([-1.0, 0, 2, 3])).round(4)
    array([[-0.4196,  0.4196]])
    """
    scale, centre = float(np.std(logits)) or 1.0, logits.mean()
    z = (logits - centre) / scale
    fitted = _regression(y, z, np.ones((1, len(y))), np.zeros((1, 2)))
    if counts is not None:
        fitted = _regression(y, z, counts, np.repeat(np.nan_to_num(fitted), len(counts), 0))
    slope = fitted[:, 1] / scale
    return np.stack([fitted[:, 0] - slope * centre, slope], 1)


def calibration_intercept(y: Floats, logits: Floats, counts: Floats | None = None) -> Floats:
    """Return the intercept with slope 1 under each row of `counts`; NaN if one class alone occurs.

    With counts, each of their rows may have logits of its own, in the same row of `logits`, and labels.

    >>> calibration_intercept(np.array([0.0, 1, 1]), np.zeros(3)).round(4)
    array([0.6931])
    """
    alike = counts is not None and logits.ndim == 1
    start = float(np.nan_to_num(calibration_intercept(y, logits)[0])) if alike else 0.0
    counts = np.ones((1, len(y))) if counts is None else counts
    total, positive = counts.sum(1), counts @ y if y.ndim == 1 else (counts * y).sum(1)
    one_class = (positive == 0) | (positive == total)
    # The root lies within the range of -z, widened by the log odds of the labels: bisection cannot fail.
    with np.errstate(divide="ignore"):
        odds = np.log(positive) - np.log(total - positive)
    odds[one_class] = 0.0
    low, high = odds - logits.max(-1), odds - logits.min(-1)
    at = np.clip(start, low, high)
    settled = np.zeros(len(at), bool)
    for _ in range(_STEPS):
        p = sigmoid(at[:, None] + logits)
        slope = positive - (counts * p).sum(1)
        low, high = np.where(slope > 0, at, low), np.where(slope > 0, high, at)
        curvature = (counts * p * (1 - p)).sum(1)
        newton = at + np.divide(slope, curvature, out=np.full_like(at, np.inf), where=curvature > 0)
        following = np.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        moved, at = np.abs(following - at), np.where(settled, at, following)
        settled |= moved < _TOLERANCE  # by itself: how many steps a row takes depends on no other row
        if settled.all():
            break
    found: Floats = np.where(one_class, np.nan, at)
    return found


def sigmoid(values: Floats) -> Floats:
    """Return 1 / (1 + exp(-x)) of each value, without overflow."""
    found: Floats = torch.from_numpy(values).sigmoid().numpy()
    return found


def _regression(y: Floats, z: Floats, counts: Floats, start: Floats) -> Floats:
    """Return intercept and slope of each row's logistic regression, by damped Newton steps; NaN if separated.

    A row is done when its own step is small: a few rows that are nearly separated take many steps.
    """
    separated = _separated(y, z, counts)
    found = np.where(separated[:, None], np.nan, start)
    left = np.flatnonzero(~separated)
    loss = _loss(y, z, counts[left], found[left])
    for _ in range(_STEPS):
        at, drawn = found[left], counts[left]
        p = sigmoid(at[:, :1] + at[:, 1:] * z)
        residual, curvature = drawn * (y - p), drawn * p * (1 - p)
        gradient = np.stack([residual.sum(1), residual @ z], 1)
        a, b, c = curvature.sum(1), curvature @ z, curvature @ (z * z)
        determinant = a * c - b * b
        usable = determinant > np.maximum(1e-12 * a * c, 1e-290)
        inverse = np.divide(1.0, determinant, out=np.zeros_like(a), where=usable)
        step = np.stack([c * gradient[:, 0] - b * gradient[:, 1], a * gradient[:, 1] - b * gradient[:, 0]], 1)
        step *= inverse[:, None]
        before, worse = loss.copy(), np.arange(len(left))
        for _ in range(30):
            loss[worse] = _loss(y, z, drawn[worse], at[worse] + step[worse])
            worse = worse[loss[worse] > before[worse] + 1e-12 * np.abs(before[worse])]
            if not len(worse):
                break
            step[worse] /= 2
        found[left] = at + step
        moving = np.abs(step).max(1) >= _TOLERANCE
        left, loss = left[moving], loss[moving]
        if not len(left):
            break
    return found


def _loss(y: Floats, z: Floats, counts: Floats, at: Floats) -> Floats:
    found: Floats = (counts * log_losses(y, at[:, :1] + at[:, 1:] * z)).sum(1)
    return found


def log_losses(y: Floats, logits: Floats) -> Floats:
    """Return -log of the probability that each logit gives to its label.

    It is numpy's logaddexp(0, (1 - 2 y) z) to one unit in the last place, several times as fast.

    >>> log_losses(np.array([1.0, 0.0]), np.array([0.0, 800.0])).round(4)
    array([6.931e-01, 8.000e+02])
    """
    found: Floats = -torch.nn.functional.logsigmoid(torch.from_numpy((2 * y - 1) * logits)).numpy()
    return found


def _separated(y: Floats, z: Floats, counts: Floats) -> NDArray[np.bool_]:
    """Return the rows in which a threshold on z parts the classes, so that no finite slope is the best."""
    drawn = counts > 0
    positive, negative = drawn & (y > 0.5), drawn & (y < 0.5)

    def ends(members: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        return np.where(members, z, np.inf).min(1), np.where(members, z, -np.inf).max(1)

    (low_1, high_1), (low_0, high_0) = ends(positive), ends(negative)
    found: NDArray[np.bool_] = (high_0 <= low_1) | (high_1 <= low_0)
    return found
