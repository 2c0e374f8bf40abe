"""Smooth calibration curves: the spline, the fit, the band, and the integrated calibration index."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_clinical import fitted_curve, natural_basis

from fedilc.evaluation.calibration_curve import calibration_curve, spline_basis


def expit(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def drawn(count: int, seed: int, slope: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    z = random.normal(-0.3, 1.3, count)
    return (random.random(count) < expit(slope * z)).astype(float), z


@pytest.mark.parametrize(("count", "quantiles"), [(120, (0.1, 0.5, 0.9)), (500, (0.05, 0.35, 0.65, 0.95))])
def test_curve_and_band_are_those_of_a_generic_optimiser(count: int, quantiles: tuple[float, ...]) -> None:
    y, z = drawn(count, 0, slope=0.6)
    found = calibration_curve(y, [z])
    assert found is not None
    at = np.log(found.predicted / (1 - found.predicted))
    eta, errors = fitted_curve(y, z, np.quantile(z, quantiles), at)
    np.testing.assert_allclose(found.observed, expit(eta), atol=1e-5)
    np.testing.assert_allclose(found.low, expit(eta - 1.959964 * errors), atol=1e-4)
    np.testing.assert_allclose(found.high, expit(eta + 1.959964 * errors), atol=1e-4)
    smooth = expit(fitted_curve(y, z, np.quantile(z, quantiles), z)[0])
    assert found.ici == pytest.approx(
        np.mean([abs(a - b) for a, b in zip(expit(z), smooth, strict=True)]), abs=1e-5
    )


@given(st.lists(st.integers(-50, 50), min_size=3, max_size=6, unique=True), st.integers(0, 9))
def test_the_basis_spans_the_natural_splines(places: list[int], seed: int) -> None:
    knots = np.sort(np.array(places, float)) / 10
    z = np.random.default_rng(seed).uniform(-8, 8, 60)
    ours, theirs = spline_basis(z, knots), natural_basis(z, list(knots))
    assert ours.shape[1] == len(knots)
    found = np.linalg.lstsq(theirs, ours, rcond=None)[0]
    np.testing.assert_allclose(theirs @ found, ours, atol=1e-6 * np.abs(ours).max())


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(-2, 2), st.floats(0.3, 3))
def test_the_curve_does_not_depend_on_the_scale_of_the_predictions(
    seed: int, shift: float, scale: float
) -> None:
    y, z = drawn(200, seed)
    at, moved = np.array([-1.0, 0.0, 0.5]), shift + scale * z
    one, other = (
        calibration_curve(y, [z], grid=expit(at)),
        calibration_curve(y, [moved], grid=expit(shift + scale * at)),
    )
    assert one is not None
    assert other is not None
    for part in ("observed", "low", "high"):
        np.testing.assert_allclose(getattr(one, part), getattr(other, part), atol=1e-8)


def test_the_index_is_near_0_if_risks_are_right_and_their_distance_if_they_are_not() -> None:
    y, z = drawn(100_000, 2)
    right, wrong = calibration_curve(y, [z]), calibration_curve(y, [z + 1])
    assert right is not None
    assert wrong is not None
    assert right.ici < 0.005
    assert wrong.ici == pytest.approx(np.abs(expit(z + 1) - expit(z)).mean(), abs=0.005)


def test_the_band_covers_the_true_curve_at_one_risk() -> None:
    covered = []
    for seed in range(400):
        y, z = drawn(250, seed, slope=0.7)
        found = calibration_curve(y, [z], grid=(0.2, 0.35, 0.5, 0.65))
        assert found is not None
        truth = expit(0.7 * np.log(found.predicted / (1 - found.predicted)))
        covered.append((found.low <= truth) & (truth <= found.high))
    shares = np.mean(covered, axis=0)
    assert (shares > 0.92).all()
    assert (shares < 0.985).all()


def test_seeds_that_agree_are_one_and_those_that_do_not_widen_the_band() -> None:
    y, z = drawn(300, 3)
    one, twice = calibration_curve(y, [z]), calibration_curve(y, [z, z])
    assert one is not None
    assert twice is not None
    np.testing.assert_allclose(twice.low, one.low)
    mixed = calibration_curve(y, [z, z + np.random.default_rng(0).normal(0, 1.5, 300)])
    assert mixed is not None
    assert (mixed.high - mixed.low).mean() > (one.high - one.low).mean()


@pytest.mark.parametrize("z", [np.zeros(40), np.linspace(-1, 1, 40), np.repeat([-1.0, 1.0], 20)])
def test_equal_predictions_and_separated_classes_have_no_curve(z: np.ndarray) -> None:
    assert calibration_curve(np.repeat([0.0, 1.0], 20), [z]) is None


def test_two_distinct_predictions_have_a_line() -> None:
    y = np.array([0.0, 1, 0, 1, 1] * 8)
    found = calibration_curve(y, [np.repeat([-1.0, 1.0], 20)])
    assert found is not None
    assert found.observed[0] == pytest.approx(y[:20].mean())
    assert found.observed[-1] == pytest.approx(y[20:].mean())


def test_saturated_risks_have_a_finite_curve() -> None:
    y, z = drawn(300, 4)
    found = calibration_curve(y, [60 * z])
    assert found is not None
    assert np.isfinite([found.observed, found.low, found.high]).all()


@pytest.mark.parametrize(("slope", "shift"), [(1.0, 0.0), (0.6, 0.0), (1.0, 0.5)])
def test_the_interval_of_the_index_holds_that_of_the_population(slope: float, shift: float) -> None:
    random = np.random.default_rng(9)
    z = random.normal(-0.5, 1.2, 200_000)
    truth = np.abs(expit(slope * z + shift) - expit(z)).mean()
    held, widths = [], []
    for _ in range(200):
        z = random.normal(-0.5, 1.2, 300)
        y = (random.random(300) < expit(slope * z + shift)).astype(float)
        found = calibration_curve(y, [z])
        assert found is not None
        assert found.ici_low <= found.ici <= found.ici_high
        held.append(found.ici_low <= truth <= found.ici_high)
        widths.append(found.ici_high - found.ici_low)
    assert np.mean(held) >= 0.93
    assert np.mean(widths) < 0.3


def test_rows_of_one_patient_widen_the_band_and_the_interval_of_the_index() -> None:
    """Four equal rows per patient say what one says; taken for four patients they halve the errors."""
    y, z = drawn(300, 5)
    times = (np.repeat(y, 4), [np.repeat(z, 4)])
    one, rows = calibration_curve(y, [z]), calibration_curve(*times)
    clustered = calibration_curve(*times, np.repeat(np.arange(300), 4))
    assert one is not None
    assert rows is not None
    assert clustered is not None
    np.testing.assert_allclose(clustered.observed, rows.observed)
    width = [found.high - found.low for found in (one, rows, clustered)]
    assert np.median(width[1] / width[0]) == pytest.approx(0.5, abs=0.1)
    assert np.median(width[2] / width[0]) == pytest.approx(1, abs=0.2)
    assert clustered.ici_high > rows.ici_high


def test_the_clustered_band_covers_the_true_curve_if_rows_of_a_patient_are_alike() -> None:
    random, covered, naive = np.random.default_rng(3), [], []
    who = np.repeat(np.arange(80), 4)
    for _ in range(200):
        z = random.normal(-0.3, 1, 80)[who] + random.normal(0, 0.4, 320)
        # A threshold of each patient's own, with the distribution that makes single rows logistic.
        y = (random.logistic(size=80)[who] < z).astype(float)
        for patients, kept in ((who, covered), (None, naive)):
            found = calibration_curve(y, [z], patients, grid=(0.43,))
            assert found is not None
            kept.append(found.low[0] <= found.predicted[0] <= found.high[0])
    assert np.mean(covered) >= 0.9
    assert np.mean(naive) < 0.85
