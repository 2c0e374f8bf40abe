"""Scores of a site with their variances: formulas, the bootstrap and the jackknife as slow oracles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit

from fedilc.evaluation.auroc import area
from fedilc.evaluation.estimates import SCALES, Estimate, difference, estimate
from fedilc.evaluation.metrics import SCORES, scores


def examples(loss: str, n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    if loss == "multiclass":
        y = random.integers(0, 3, n).astype(float)
        return y, random.normal(size=(n, 3)) + np.eye(3)[y.astype(int)]
    if loss == "regression":
        y = random.normal(size=n)
        return y, y + random.normal(size=n)
    y = (random.random(n) < 0.3).astype(float)
    return y, (1.2 * y - 1 + random.normal(size=n)).round(1)


def found(loss: str, score: str, y: np.ndarray, *outputs: np.ndarray, own_scale: bool = True) -> Estimate:
    one = estimate(loss, score, y, outputs, own_scale=own_scale)
    assert one is not None
    return one


ALL = [(loss, score) for loss in ("binary", "multiclass", "regression") for score in SCORES[loss]]


@pytest.mark.parametrize(("loss", "score"), ALL)
def test_values_are_the_scores_and_variances_those_of_many_resamples(loss: str, score: str) -> None:
    y, outputs = examples(loss)
    one = found(loss, score, y, outputs)
    assert one.value == pytest.approx(scores(loss, y, outputs)[score][0], abs=1e-9)
    counts = np.random.default_rng(1).multinomial(len(y), np.full(len(y), 1 / len(y)), 2000).astype(float)
    assert np.sqrt(one.variance) == pytest.approx(scores(loss, y, outputs, counts)[score].std(), rel=0.1)
    other = found(loss, score, y, outputs, own_scale=False)
    assert SCALES[score].back(other.value) == pytest.approx(one.value)
    step = 1e-6
    slope = (SCALES[score].to(one.value + step) - SCALES[score].to(one.value - step)) / (2 * step)
    assert np.sqrt(other.variance) == pytest.approx(abs(slope) * np.sqrt(one.variance), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([2, 5, 1000]))
def test_influences_on_the_average_precision_are_its_derivatives_by_weights(seed: int, levels: int) -> None:
    random = np.random.default_rng(seed)
    y = np.repeat([1.0, 0.0], [12, 18])
    outputs = random.integers(0, levels, 30) / levels
    one = found("binary", "auprc", y, outputs)
    if one.smoothed is not None:
        return
    step = 1e-6
    counts = np.concatenate([1 + step * np.eye(30), 1 - step * np.eye(30)])
    moved = scores("binary", y, outputs, counts)["auprc"]
    slopes = (moved[:30] - moved[30:]) / (2 * step)
    least = one.value * (1 - one.value) / 12
    assert one.variance == pytest.approx(max(slopes @ slopes, least), rel=1e-5)
    np.testing.assert_allclose(
        one.influence * np.linalg.norm(slopes), slopes * np.linalg.norm(one.influence), atol=1e-7
    )


def test_observed_to_expected_has_the_variance_of_its_formula() -> None:
    y, logits = examples("binary")
    one = found("binary", "oe_ratio", y, logits, own_scale=False)
    observed, expected = y.sum(), expit(logits).sum()
    assert one.value == pytest.approx(np.log(observed / expected))
    assert one.variance == pytest.approx((1 - observed / len(y)) / observed)


def test_slope_and_intercept_have_the_standard_errors_of_the_information_matrix() -> None:
    y, logits = examples("binary")
    slope, intercept = (found("binary", f"calibration_{name}", y, logits) for name in ("slope", "intercept"))
    design = np.stack([np.ones(len(y)), logits], 1)
    at = np.zeros(2)
    for _ in range(30):  # iteratively reweighted least squares, as glm
        p = expit(design @ at)
        information = (design.T * (p * (1 - p))) @ design
        at = at + np.linalg.solve(information, design.T @ (y - p))
    assert slope.value == pytest.approx(at[1])
    assert slope.variance == pytest.approx(np.linalg.inv(information)[1, 1], rel=1e-6)
    p = expit(intercept.value + logits)
    assert p.sum() == pytest.approx(y.sum())
    assert intercept.variance == pytest.approx(1 / (p * (1 - p)).sum())


def test_seeds_are_averaged_as_logits_with_their_covariance_and_the_variance_between_them() -> None:
    random = np.random.default_rng(2)
    y, outputs = examples("binary")
    seeds = [outputs + random.normal(0, 0.5, len(y)) for _ in range(3)]
    one = found("binary", "auroc", y, *seeds, own_scale=False)
    areas = [a for s in seeds if (a := area(y, s)) is not None]
    values = np.array([a.value for a in areas])
    slopes = 1 / (values * (1 - values))
    covariance = np.array([[a.influence @ b.influence for b in areas] for a in areas])
    assert one.value == pytest.approx(logit(values).mean())
    expected = slopes @ covariance @ slopes / 9 + logit(values).var(ddof=1) / 3
    assert one.variance == pytest.approx(expected)


def test_a_difference_counts_the_covariance_and_both_methods_seeds() -> None:
    random = np.random.default_rng(3)
    y, outputs = examples("binary")
    ours = [outputs + random.normal(0, 0.3, len(y)) for _ in range(2)]
    theirs = [outputs + random.normal(0, 0.6, len(y)) for _ in range(2)]
    one, other = (found("binary", "auroc", y, *seeds) for seeds in (ours, theirs))
    apart = difference(one, other)
    assert apart.value == pytest.approx(one.value - other.value)
    together = float(one.influence @ other.influence)
    assert together > 0
    assert apart.variance == pytest.approx(one.variance + other.variance - 2 * together)
    assert difference(one, one).variance == pytest.approx(2 * one.between_seeds)


@pytest.mark.parametrize("score", ["auroc", "auprc", "accuracy"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_perfect_score_has_a_logit_and_a_variance(score: str, sign: int) -> None:
    y = np.repeat([1.0, 0.0], [10, 30])
    outputs = sign * (2 * y - 1)
    one = found("binary", score, y, outputs, own_scale=False)
    assert np.isfinite(one.value)
    if score != "auprc" or sign == 1:  # the lowest average precision is not 0
        assert SCALES[score].back(abs(one.value)) == pytest.approx(
            40.5 / 41 if score == "accuracy" else 10.5 / 11
        )
    assert 0.1 < one.variance < 5


def test_few_events_separated_classes_and_no_error_have_no_estimate() -> None:
    y = np.repeat([1.0, 0.0], [9, 100])
    outputs = np.random.default_rng(0).normal(size=109)
    for score in (*SCORES["binary"], "oe_ratio"):
        assert (estimate("binary", score, y, [outputs]) is None) == (score != "accuracy")
    y = np.repeat([1.0, 0.0], [20, 20])
    assert estimate("binary", "calibration_slope", y, [y]) is None
    assert estimate("regression", "rmse", y, [y]) is None
    assert estimate("regression", "r2", np.ones(20), [np.zeros(20)]) is None
