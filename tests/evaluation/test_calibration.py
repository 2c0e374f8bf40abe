"""Calibration slope and intercept: against scikit-learn's logistic regression and scipy's minimiser."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from fedilc.evaluation.calibration import calibration_intercept, calibration_slope


def drawn(seed: int, examples: int = 80) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0.5, 2, examples)
    return (generator.random(examples) < expit(0.7 * logits - 0.4)).astype(float), logits


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_the_slope_is_that_of_scikit_learns_logistic_regression_also_for_counts(seed: int) -> None:
    y, logits = drawn(seed)
    counts = np.random.default_rng(seed).integers(0, 4, (3, len(y))).astype(float)
    found = calibration_slope(y, logits, counts)
    for row, slope in zip(counts, found, strict=True):
        model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
        model.fit(logits[:, None], y, sample_weight=row)
        assert slope == pytest.approx(model.coef_[0, 0], rel=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(-8, 8))
def test_the_intercept_makes_the_mean_risk_the_share_of_positives_with_slope_1(
    seed: int, shift: float
) -> None:
    y, logits = drawn(seed)
    logits = logits + shift
    counts = np.random.default_rng(seed).integers(0, 4, (3, len(y))).astype(float)
    found = calibration_intercept(y, logits, counts)
    for row, intercept in zip(counts, found, strict=True):

        def excess(at: float, row: np.ndarray = row) -> float:
            return float(row @ (expit(at + logits) - y))

        assert intercept == pytest.approx(brentq(excess, -60, 60, xtol=1e-12), abs=1e-8)


def test_logits_that_come_from_the_labels_own_risk_are_calibrated() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 1.5, 200_000)
    y = (generator.random(len(logits)) < expit(logits)).astype(float)
    assert calibration_slope(y, logits)[0] == pytest.approx(1, abs=0.02)
    assert calibration_intercept(y, logits)[0] == pytest.approx(0, abs=0.02)
    assert calibration_slope(y, 2 * logits)[0] == pytest.approx(0.5, abs=0.01)


def test_one_class_separated_classes_and_equal_logits_have_no_slope() -> None:
    logits = np.array([-2.0, -1.0, 1.0, 2.0])
    assert np.isnan(calibration_slope(np.ones(4), logits)).all()
    assert np.isnan(calibration_intercept(np.ones(4), logits)).all()
    assert np.isnan(calibration_intercept(np.zeros(4), logits)).all()
    separated = np.array([0.0, 0.0, 1.0, 1.0])
    assert np.isnan(calibration_slope(separated, logits)).all()
    assert np.isnan(calibration_slope(1 - separated, logits)).all()
    assert np.isnan(calibration_slope(separated, np.ones(4))).all()
    assert calibration_intercept(separated, logits)[0] == pytest.approx(0, abs=1e-9)


def test_extreme_logits_are_no_obstacle() -> None:
    y, logits = drawn(3)
    assert calibration_slope(y, 1e3 * logits)[0] == pytest.approx(calibration_slope(y, logits)[0] / 1e3)
    assert np.isfinite(calibration_intercept(y, 1e3 * logits)).all()


def test_rows_that_are_nearly_separated_or_separated_leave_the_others_as_they_are() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 2, 80)
    y = (generator.random(80) < expit(12 * logits)).astype(float)
    counts = np.stack([np.bincount(generator.integers(0, 80, 80), minlength=80) for _ in range(40)]) * 1.0
    together = calibration_slope(y, logits, counts)
    assert 0 < np.isnan(together).sum() < 40
    alone = np.concatenate([calibration_slope(y, logits, row[None]) for row in counts])
    assert together == pytest.approx(alone, rel=1e-9, nan_ok=True)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_separated_classes_give_no_warning() -> None:
    logits = np.concatenate([np.linspace(-2, -0.54, 70), np.linspace(-0.49, 1.4, 60)])
    y = np.concatenate([np.zeros(70), np.ones(60)])
    counts = np.random.default_rng(0).multinomial(130, np.full(130, 1 / 130), 200).astype(float)
    assert np.isnan(calibration_slope(y, logits, counts)).all()
