"""Calibration plots: groups of examples that were predicted alike, and how sure their means are."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from fedilc.report.html.charts import wilson_limits
from fedilc.report.html.prediction_charts import binned


def test_calibration_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    predicted = random.uniform(size=120)
    observed = (random.uniform(size=120) < predicted).astype(float)
    line = binned("", 0, predicted, observed, 1)
    shares, means = calibration_curve(observed, predicted, n_bins=8, strategy="quantile")
    np.testing.assert_allclose(line.x, means)
    np.testing.assert_allclose(line.y, shares)
    assert all(low <= share <= high for low, share, high in zip(line.low, line.y, line.high, strict=True))
    twice = binned("", 0, np.tile(predicted, 2), np.tile(observed, 2), 2)
    np.testing.assert_allclose([*twice.low, *twice.high], [*line.low, *line.high])


def test_quantities_are_grouped_too_with_limits_of_their_mean() -> None:
    predicted = np.arange(60.0)
    line = binned("", 0, predicted, predicted + 1.0, 1)
    np.testing.assert_allclose(line.y, np.add(line.x, 1.0))
    spread = 1.96 * np.arange(15).std() / np.sqrt(15)
    np.testing.assert_allclose(np.subtract(line.high, line.y), spread)


def test_wilsons_limits_hold_the_share_and_stay_between_0_and_1() -> None:
    assert wilson_limits(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson_limits(0.0, 10)[0] == 0.0
    assert wilson_limits(1.0, 10)[1] == 1.0
    low, high = wilson_limits(0.04, 1)  # a mean over seeds, of one example
    assert low <= 0.04 <= high
