"""Scores of resamples: against scikit-learn on the resampled examples themselves."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import expit, softmax
from sklearn import metrics

from fedilc.evaluation.metrics import SCORES, scores


def refitted_loss(labels: np.ndarray, values: np.ndarray, intercept: float) -> float:
    return float(metrics.log_loss(labels, expit(intercept + values)))


def resample(seed: int, examples: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(seed).integers(0, examples, (3, examples))
    return drawn, np.stack([np.bincount(one, minlength=examples) for one in drawn]).astype(float)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_binary_scores_are_scikit_learns_on_the_resampled_examples(seed: int, tied: bool) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, 40)
    logits = np.round(logits) if tied else logits
    y = (generator.random(40) < expit(logits)).astype(float)
    y[:2] = 0, 1
    drawn, counts = resample(seed, 40)
    found = scores("binary", y, logits[:, None], counts)
    assert set(found) == set(SCORES["binary"])
    for place, chosen in enumerate(drawn):
        labels, values = y[chosen], logits[chosen]
        if len(set(labels)) < 2:
            assert np.isnan(found["auroc"][place])
            continue
        assert found["auroc"][place] == pytest.approx(metrics.roc_auc_score(labels, values))
        assert found["auprc"][place] == pytest.approx(metrics.average_precision_score(labels, values))
        assert found["log_loss"][place] == pytest.approx(metrics.log_loss(labels, expit(values)))
        loss = partial(refitted_loss, labels, values)
        least = minimize_scalar(loss, bounds=(-20, 20), method="bounded")
        assert found["log_loss_refitted"][place] == pytest.approx(least.fun, abs=1e-6)
        assert found["brier"][place] == pytest.approx(metrics.brier_score_loss(labels, expit(values)))
        assert found["accuracy"][place] == pytest.approx(metrics.accuracy_score(labels, values > 0))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_multiclass_scores_are_scikit_learns(seed: int) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (60, 4))
    y = np.where(generator.random(60) < 0.6, logits[:, :3].argmax(1), generator.integers(0, 3, 60))
    drawn, counts = resample(seed, 60)
    found = scores("multiclass", y, logits, counts)
    for place, chosen in enumerate(drawn):
        labels, p = y[chosen], softmax(logits[chosen], axis=1)
        areas = [metrics.roc_auc_score(labels == k, p[:, k]) for k in np.unique(labels)]
        assert found["auroc"][place] == pytest.approx(np.mean(areas))
        assert found["accuracy"][place] == pytest.approx(metrics.accuracy_score(labels, p.argmax(1)))
        assert found["log_loss"][place] == pytest.approx(metrics.log_loss(labels, p, labels=range(4)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e4]))
def test_regression_scores_are_scikit_learns(seed: int, offset: float) -> None:
    generator = np.random.default_rng(seed)
    y = generator.normal(offset, 2, 50)
    predicted = y + generator.normal(0, 1, 50)
    drawn, counts = resample(seed, 50)
    found = scores("regression", y, predicted[:, None], counts)
    for place, chosen in enumerate(drawn):
        labels, values = y[chosen], predicted[chosen]
        assert found["rmse"][place] == pytest.approx(metrics.root_mean_squared_error(labels, values))
        assert found["mae"][place] == pytest.approx(metrics.mean_absolute_error(labels, values))
        assert found["r2"][place] == pytest.approx(metrics.r2_score(labels, values))


def test_one_class_has_losses_but_no_areas() -> None:
    found = scores("binary", np.ones(5), np.linspace(-1, 1, 5))
    assert {name for name, values in found.items() if np.isnan(values).any()} == {
        "auroc",
        "auprc",
        "log_loss_refitted",
        "calibration_slope",
        "calibration_intercept",
    }
    assert np.isnan(scores("multiclass", np.zeros(4), np.ones((4, 3)))["auroc"]).all()
    assert np.isnan(scores("regression", np.ones(4), np.zeros(4))["r2"]).all()
