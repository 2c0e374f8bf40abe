"""Bootstrap intervals: scipy's to the bit from the same draws, paired by the seed, and honest coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from fedilc.evaluation import intervals
from fedilc.evaluation.intervals import Interval, bootstrap_intervals, interval_of, resampled
from fedilc.seeds import numpy_generator


def drawn(seed: int, examples: int = 60) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 1.5, examples)
    return (generator.random(examples) < expit(logits)).astype(float), logits


def test_the_interval_is_scipys_percentile_interval_of_the_same_draws() -> None:
    y, logits = drawn(1)
    ours = bootstrap_intervals("binary", y, logits, seed=7, resamples=300)
    for name, statistic in (
        ("auroc", lambda chosen: roc_auc_score(y[chosen], logits[chosen])),
        ("brier", lambda chosen: float(np.mean((expit(logits[chosen]) - y[chosen]) ** 2))),
    ):
        theirs = stats.bootstrap(
            (np.arange(len(y)),),
            statistic,
            n_resamples=300,
            method="percentile",
            vectorized=False,
            random_state=numpy_generator(7, "bootstrap"),
        ).confidence_interval
        assert (ours[name].low, ours[name].high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
        assert ours[name].value == pytest.approx(statistic(np.arange(len(y))))


def test_the_same_seed_draws_the_same_examples_for_two_models_and_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    y, logits = drawn(2)
    whole = resampled("binary", y, logits, seed=3, resamples=50)
    monkeypatch.setattr(intervals, "_AT_ONCE", 7 * len(y))
    parts = resampled("binary", y, logits, seed=3, resamples=50)
    assert parts["brier"] == pytest.approx(whole["brier"], abs=1e-14)
    assert np.array_equal(whole["auroc"], parts["auroc"])
    other = resampled("binary", y, logits + 1, seed=3, resamples=50)
    assert np.array_equal(whole["auroc"], other["auroc"])
    assert not np.array_equal(whole["auroc"], resampled("binary", y, logits, seed=4, resamples=50)["auroc"])


def test_resamples_without_a_score_are_left_out_and_a_set_without_it_has_none() -> None:
    found = interval_of(np.array([0.5, np.nan, 0.4, 0.6, np.nan]))
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.405, 0.595))
    assert interval_of(np.full(3, np.nan)) == Interval(None, None, None)
    assert interval_of(np.array([0.5, np.nan])) == Interval(0.5, None, None)


def test_eight_events_in_eight_thousand_examples_have_no_area_but_a_log_loss() -> None:
    y = np.repeat([1.0, 0.0], [8, 7992])
    logits = np.random.default_rng(0).normal(-7, 1, 8000)
    found = bootstrap_intervals("binary", y, logits, resamples=50)
    for name in ("auroc", "auprc", "calibration_slope", "calibration_intercept"):
        assert found[name] == Interval(None, None, None, reason="8 events, fewer than 10")
        assert np.isnan(resampled("binary", y, logits, resamples=2)[name]).all()
    assert str(found["auroc"]) == "not estimable (8 events, fewer than 10)"
    assert found["log_loss"].value is not None
    assert found["log_loss"].caution is None


def test_fewer_than_a_hundred_events_have_an_area_with_a_caution() -> None:
    y = np.repeat([1.0, 0.0], [10, 200])
    found = bootstrap_intervals("binary", y, np.linspace(1, -1, 210), resamples=50)
    assert found["auroc"].value == 1.0
    assert found["auroc"].caution == "10 events, fewer than 100"
    assert str(found["auroc"]).endswith("(caution: 10 events, fewer than 100)")
    many = bootstrap_intervals("binary", np.repeat([1.0, 0.0], 100), np.linspace(1, -1, 200), resamples=50)
    assert many["auroc"].caution is None


def test_about_95_of_100_intervals_hold_the_true_value() -> None:
    held = 0
    truth = float(resampled("binary", *drawn(0, 400_000), resamples=0)["auroc"][0])
    for seed in range(1, 101):
        found = bootstrap_intervals("binary", *drawn(seed, 80), seed=seed, resamples=120)["auroc"]
        held += found.low <= truth <= found.high
    assert 88 <= held <= 99
