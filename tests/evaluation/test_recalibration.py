"""Recalibration: against scikit-learn's regressions, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, logsumexp
from sklearn.linear_model import LinearRegression, LogisticRegression

from fedilc.errors import DataError
from fedilc.evaluation.calibration import calibration_intercept, calibration_slope
from fedilc.evaluation.intervals import score_interval
from fedilc.evaluation.recalibration import (
    KINDS,
    Kind,
    Line,
    coefficient_intervals,
    cross_validated,
    fitted_lines,
    recalibrate,
)


def binary(seed: int, rows: int = 150) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    z = random.normal(0.3, 1.5, rows)
    return (random.random(rows) < expit(0.6 * z - 0.8)).astype(float), z[:, None]


def several(seed: int, rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    z = random.normal(0, 1.5, (rows, 3))
    noisy = 0.7 * z + np.array([0.0, 0.4, -0.3]) + random.gumbel(size=z.shape)
    return noisy.argmax(1).astype(float), z


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_the_slope_of_two_classes_is_scikit_learns_regression_under_counts(seed: int) -> None:
    y, z = binary(seed)
    counts = np.random.default_rng(seed).integers(0, 3, (2, len(y))).astype(float)
    for row, line in zip(counts, fitted_lines("binary", "slope", y, z, counts), strict=True):
        model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(z, y, sample_weight=row)
        assert line == pytest.approx([model.coef_[0, 0], model.intercept_[0]], abs=1e-4)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(KINDS))
def test_the_lines_of_several_classes_minimise_the_log_loss(seed: int, kind: Kind) -> None:
    y, z = several(seed)
    counts = np.random.default_rng(seed).integers(0, 3, (2, len(y))).astype(float)

    def loss(at: np.ndarray, row: np.ndarray) -> float:
        logits = (at[2] if kind == "slope" else 1.0) * z + np.array([0.0, *at[:2]])
        return float(row @ (logsumexp(logits, axis=1) - logits[np.arange(len(y)), y.astype(int)]))

    for row, line in zip(counts, fitted_lines("multiclass", kind, y, z, counts), strict=True):
        start = np.array([0.0, 0.0, 1.0][: 2 + (kind == "slope")])
        expected = minimize(loss, start, (row,), "BFGS", options={"gtol": 1e-7}).x
        assert line == pytest.approx(
            [*(expected[2:] if kind == "slope" else [1.0]), 0.0, *expected[:2]], abs=1e-4
        )


def test_two_classes_as_two_logits_have_the_line_of_one_logit() -> None:
    y, z = binary(3)
    both = np.column_stack([np.zeros(len(y)), z])
    for kind in KINDS:
        slope, _, intercept = fitted_lines("multiclass", kind, y, both, np.ones((1, len(y))))[0]
        assert [slope, intercept] == pytest.approx(
            fitted_lines("binary", kind, y, z, np.ones((1, len(y))))[0], abs=1e-7
        )


def test_quantities_have_the_line_of_least_squares() -> None:
    random = np.random.default_rng(0)
    z = random.normal(size=(60, 1))
    y, row = 2 + 0.5 * z[:, 0] + random.normal(size=60), random.integers(0, 3, 60).astype(float)
    model = LinearRegression().fit(z, y, sample_weight=row)
    assert fitted_lines("regression", "slope", y, z, row[None])[0] == pytest.approx(
        [model.coef_[0], model.intercept_]
    )
    assert fitted_lines("regression", "intercept", y, z, row[None])[0] == pytest.approx(
        [1, row @ (y - z[:, 0]) / row.sum()]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_recalibrated_model_is_calibrated_on_its_own_rows_and_less_so_when_cross_validated(
    kind: Kind,
) -> None:
    y, z = binary(1)
    found = recalibrate("binary", kind, y, z)
    moved = found.line(z)[:, 0]
    assert calibration_intercept(y, moved)[0] == pytest.approx(0, abs=1e-7)
    if kind == "slope":
        assert calibration_slope(y, moved)[0] == pytest.approx(1, abs=1e-6)
    losses = {way: of["log_loss"]["value"] for way, of in found.facts["scores"].items()}
    assert losses["apparent"] < losses["cross_validated"] < losses["before"]
    assert (found.facts["rows"], found.facts["events"]) == (len(y), y.sum())


@pytest.mark.parametrize("repeated", [False, True])
def test_intervals_of_two_classes_are_those_of_the_calibration_scores(repeated: bool) -> None:
    y, z = binary(2)
    patients = np.arange(len(y)) // 3 if repeated else None
    slope = score_interval("binary", "calibration_slope", y, [z], patients)
    found = coefficient_intervals(
        "binary", "slope", y, z, recalibrate("binary", "slope", y, z).line, patients
    )
    assert (found["slope"].low, found["slope"].high) == pytest.approx((slope.low, slope.high), abs=1e-6)
    large = score_interval("binary", "calibration_intercept", y, [z], patients)
    line = recalibrate("binary", "intercept", y, z).line
    only = coefficient_intervals("binary", "intercept", y, z, line, patients)
    assert list(only) == ["intercept"]
    assert (only["intercept"].low, only["intercept"].high) == pytest.approx((large.low, large.high), abs=1e-6)


def test_a_patient_is_in_one_fold() -> None:
    y, z = binary(4)
    patients = np.arange(len(y)) // 5
    moved = cross_validated("binary", "intercept", y, z, patients)[:, 0] - z[:, 0]
    for patient in np.unique(patients):
        assert np.ptp(moved[patients == patient]) < 1e-12
    assert len(np.unique(moved.round(9))) > 1


def test_what_cannot_carry_a_line_is_refused_in_a_sentence() -> None:
    y, z = binary(5)
    few = np.where(np.cumsum(y) > 9, 0.0, y)
    with pytest.raises(DataError, match="at least 10 events, and the table has 9; add rows"):
        recalibrate("binary", "intercept", few, z)
    one_patient = np.where(y > 0.5, 0, np.arange(len(y)) + 1)
    with pytest.raises(DataError, match="at least 10 patients with events, and the table has 1"):
        recalibrate("binary", "intercept", y, z, one_patient)
    with pytest.raises(DataError, match="no finite slope fits best"):
        recalibrate("binary", "slope", y, 2 * y[:, None] - 1)
    with pytest.raises(DataError, match=r"slope that fits this table is -\d.*wrong way round"):
        recalibrate("binary", "slope", y, -z)
    labels, logits = several(6)
    with pytest.raises(DataError, match="at least 10 rows of class 'c', and the table has 0"):
        recalibrate("multiclass", "intercept", np.minimum(labels, 1), logits, classes=("a", "b", "c"))
    with pytest.raises(DataError, match="no finite slope"):
        recalibrate("multiclass", "slope", labels, 9 * np.eye(3)[labels.astype(int)])


def test_a_line_of_several_outputs_moves_each() -> None:
    assert Line(2.0, (0.0, 1.0))(np.array([[1.0, 3.0]])).tolist() == [[2.0, 7.0]]
