"""The smooth calibration curve of binary predictions, its band, and the integrated calibration index.

The label y is regressed on the logit z of the predicted risk by logistic regression with a restricted cubic
spline: P(y = 1) = sigmoid(b(z)' beta), where b(z) is 1, z and, for knots t_1 < ... < t_k and j = 1 ... k - 2,

    ((z - t_j)+^3 - (z - t_{k-1})+^3 (t_k - t_j) / (t_k - t_{k-1})
        + (z - t_k)+^3 (t_{k-1} - t_j) / (t_k - t_{k-1})) / (t_k - t_1)^2,

which is a straight line beyond the outer knots. Knots are at fixed quantiles of z: three, or four from 100
events and 100 non-events on.

    ICI    mean over examples of |risk - smooth(risk)|, the integrated calibration index
    band   sigmoid(b(z)' beta -+ 1.96 sqrt(b(z)' V b(z))), pointwise, with V the inverse of the information

The interval of the ICI is that of Scheffe's band, which holds the whole curve with at least 95 %
(sqrt of the quantile of chi squared in place of 1.96): the lower end is the mean distance from the predicted
risks to the band, the upper end that to its farther limit. So it holds the ICI at least as often. Percentiles
of a bootstrap would not: resampled curves lie farther from the predicted risks than the fitted one.

With several seeds, the curve is the mean of their curves on the logit scale, and the ICI is the mean of
theirs, as are its limits. The variance of the mean curve is that of the examples, which all seeds share, and
the variance between seeds over their number.

If patients have several rows, V is the variance of clustered data: the influences of a patient's rows are
added before they are squared, and quantiles are those of t and F with one degree less than patients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from fedilc.evaluation.calibration import Floats, log_losses, sigmoid
from fedilc.evaluation.estimates import CAUTION_COUNT, per_patient
from fedilc.evaluation.intervals import t_quantile
from fedilc.evaluation.risk_counts import GRID

_QUANTILES = {3: (0.1, 0.5, 0.9), 4: (0.05, 0.35, 0.65, 0.95)}
# Newton's steps square the error, whereas those towards an infinite coefficient shrink by a constant factor:
# a fit that is not done after this many has no finite solution.
_STEPS, _TOLERANCE = 25, 1e-12


@dataclass(frozen=True)
class CalibrationCurve:
    """Observed against predicted risks at some points, pointwise 95 % limits, and the ICI with its own."""

    predicted: Floats
    observed: Floats
    low: Floats
    high: Floats
    ici: float
    ici_low: float
    ici_high: float


@dataclass(frozen=True)
class _Fit:
    """A fitted spline of the logits: knots on the scale of (z - centre) / spread, beta, and its variance.

    `influence` has a row per example, or per patient with several; then `freedom` has the degrees of freedom.
    """

    centre: float
    spread: float
    knots: Floats
    beta: Floats
    variance: Floats
    influence: Floats
    freedom: int | None

    def quantile(self, level: float) -> float:
        """Return how many standard errors the limits at one point are away."""
        z = NormalDist().inv_cdf((1 + level) / 2)
        return z if self.freedom is None else t_quantile(z, self.freedom)

    def basis(self, logits: Floats) -> Floats:
        return spline_basis((logits - self.centre) / self.spread, self.knots)


def calibration_curve(
    y: Any,
    outputs: Sequence[Any],
    patients: Any = None,
    grid: Sequence[float] = GRID,
    beyond: int = 0,
    level: float = 0.95,
) -> CalibrationCurve | None:
    """Return the smooth calibration curve; None if a spline has no finite fit or all predictions are equal.

    Args:
        y: one label per example, 0 or 1.
        outputs: per seed, one logit per example.
        patients: whose each example is, by any number; None if every example is a patient of its own.
        grid: the risks at which the curve is given, as far as they are between the 1st and the 99th
            percentile of the predicted ones.
        beyond: at least so many examples are predicted to be below, and above, all of these.
        level: how often the limits hold the true curve at one risk.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=2000)
    >>> y = rng.random(2000) < sigmoid(2 * z)
    >>> found = calibration_curve(y, [z])
    >>> found.ici > 0.05, bool((found.low <= found.observed).all())
    (True, True)
    """
    labels = np.asarray(y, float)
    logits = [np.array(one, float).reshape(len(labels)) for one in outputs]
    fits = [_fit(labels, z, patients) for z in logits]
    found = [fit for fit in fits if fit is not None]
    if len(found) < len(fits):
        return None
    index = np.mean([_index(z, fit, level) for z, fit in zip(logits, found, strict=True)], axis=0)
    tail = max(0.01, beyond / len(labels))
    ends = np.quantile(np.concatenate(logits), (min(tail, 0.5), max(1 - tail, 0.5)))
    risks = np.asarray(grid, float)
    at = np.log(risks) - np.log1p(-risks)
    inside = (ends[0] <= at) & (at <= ends[1])
    risks, at = risks[inside], at[inside]
    rows = [fit.basis(at) for fit in found]
    curves = np.stack([row @ fit.beta for row, fit in zip(rows, found, strict=True)])
    middle = curves.mean(0)
    reach = found[0].quantile(level) * np.sqrt(_variance(found, rows, curves))
    return CalibrationCurve(
        risks, sigmoid(middle), sigmoid(middle - reach), sigmoid(middle + reach), *index.tolist()
    )


def _index(logits: Floats, fit: _Fit, level: float) -> tuple[float, float, float]:
    """Return the ICI of one seed, and its limits by Scheffe's band."""
    from scipy.stats import chi2, f

    rows, size = fit.basis(logits), len(fit.beta)
    freedom = fit.freedom
    square = chi2.ppf(level, size) if freedom is None else size * f.ppf(level, size, freedom)
    reach = np.sqrt(square * np.einsum("pi,ij,pj->p", rows, fit.variance, rows))
    middle, risks = rows @ fit.beta, sigmoid(logits)
    low, high = sigmoid(middle - reach), sigmoid(middle + reach)
    outside = np.maximum(0.0, np.maximum(low - risks, risks - high))
    farther = np.maximum(np.abs(low - risks), np.abs(high - risks))
    return float(np.abs(sigmoid(middle) - risks).mean()), float(outside.mean()), float(farther.mean())


def _variance(fits: Sequence[_Fit], rows: Sequence[Floats], curves: Floats) -> Floats:
    """Return the variance of the mean curve at each point, on the logit scale."""
    pulls = []
    for fit, row in zip(fits, rows, strict=True):
        own = np.einsum("pi,ij,pj->p", row, fit.variance, row)
        raw = np.einsum("pi,ij,pj->p", row, fit.influence.T @ fit.influence, row)
        # Examples pull in the proportions of their influence; the variance is the model's, which does not
        # shrink when few events happen to be fitted well.
        pulls.append(row * np.sqrt(np.divide(own, raw, out=np.zeros_like(own), where=raw > 0))[:, None])
    shared = (
        sum(
            np.einsum("pi,ij,pj->p", one, fit.influence.T @ other_fit.influence, other)
            for one, fit in zip(pulls, fits, strict=True)
            for other, other_fit in zip(pulls, fits, strict=True)
        )
        / len(fits) ** 2
    )
    between = curves.var(0, ddof=1) / len(fits) if len(fits) > 1 else 0.0
    found: Floats = np.maximum(shared, 0.0) + between
    return found


def _fit(y: Floats, logits: Floats, patients: Any) -> _Fit | None:
    """Return the spline of one seed; None if it has no finite fit."""
    spread = float(np.std(logits))
    if not np.isfinite(spread) or spread == 0:
        return None
    rarer = min(y.sum(), len(y) - y.sum())
    centre = float(logits.mean())
    z = (logits - centre) / spread
    knots = np.unique(np.quantile(z, _QUANTILES[4 if rarer >= CAUTION_COUNT else 3]))
    rows = spline_basis(z, knots)
    if _rank(rows) < len(knots):  # few distinct predictions
        knots = knots[:0]
        rows = rows[:, :2]
    beta = np.zeros(rows.shape[1])
    before = _loss(y, rows @ beta)
    for _ in range(_STEPS):
        risks = sigmoid(rows @ beta)
        slope = rows.T @ (y - risks)
        information = (rows * (risks * (1 - risks))[:, None]).T @ rows
        if np.linalg.cond(information) > 1e12:
            return None
        step = np.linalg.solve(information, slope)
        if slope @ step < _TOLERANCE:
            inverse = np.linalg.inv(information).astype(np.float64, copy=False)
            influence = (rows * (y - risks)[:, None]) @ inverse
            if patients is None:
                return _Fit(centre, spread, knots, beta, inverse, influence, None)
            influence = np.stack([per_patient(column, patients) for column in influence.T], 1)
            clustered = influence.T @ influence
            return _Fit(centre, spread, knots, beta, clustered, influence, max(1, len(influence) - 1))
        while (following := _loss(y, rows @ (beta + step))) > before + 1e-12 * before:
            step = step / 2
        beta, before = beta + step, following
    return None


def _loss(y: Floats, logits: Floats) -> float:
    return float(log_losses(y, logits).sum())


def _rank(rows: Floats) -> int:
    """Return the rank of a matrix with few columns, which its triangular factor shares."""
    return int(np.linalg.matrix_rank(np.linalg.qr(rows, mode="r"), rtol=len(rows) * np.finfo(float).eps))


def spline_basis(z: Floats, knots: Floats) -> Floats:
    """Return 1, z and the terms of a restricted cubic spline, a row per value; a line with two knots or less.

    >>> spline_basis(np.array([0.0, 1.0, 3.0]), np.array([0.0, 1.0, 2.0]))[:, 2]
    array([0.  , 0.25, 3.  ])
    """
    columns = [np.ones_like(z), z]
    if len(knots) > 2:
        last, before = knots[-1], knots[-2]

        def cubed(knot: float) -> Floats:
            above: Floats = np.maximum(z - knot, 0.0)
            return above * above * above  # the power function takes far longer

        ends = cubed(before), cubed(last)

        for knot in knots[:-2]:
            tail = ends[0] * (last - knot) - ends[1] * (before - knot)
            columns.append((cubed(knot) - tail / (last - before)) / (last - knots[0]) ** 2)
    return np.stack(columns, axis=1)
