"""The test over held-out sites by its definition: exact sums, and Student's t in many digits."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import mpmath


def site_test(differences: Sequence[float], training: int) -> tuple[float, float]:
    """Return the standard error of the mean difference, and the two-sided p of a mean of 0.

    Nadeau and Bengio's variance of the mean of k numbers is (1/k + n_test / n_train) times their sample
    variance; here one site is the test set, and `training` sites are the training set.
    """
    values = [Fraction(one) for one in differences]
    k = len(values)
    mean = sum(values) / k
    squares = sum((one - mean) ** 2 for one in values) / (k - 1)
    variance = (Fraction(1, k) + Fraction(1, training)) * squares
    with mpmath.workdps(40):
        t2 = mpmath.mpf((mean**2 / variance).numerator) / (mean**2 / variance).denominator
        degrees = mpmath.mpf(k - 1)
        p = mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + t2), regularized=True)
        se = mpmath.sqrt(mpmath.mpf(variance.numerator) / variance.denominator)
    return float(se), float(p)
