"""Bootstrap intervals: scipy's to the bit from the same draws, paired by the seed, and honest coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from fedilc.evaluation import intervals
from fedilc.evaluation.intervals import bootstrap_intervals, interval_of, resampled
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
    y = np.array([1.0, 0, 0, 0, 0])
    found = bootstrap_intervals("binary", y, np.arange(5.0), resamples=100)
    assert found["auroc"].value == 0.0
    assert found["auroc"].low is not None
    alone = bootstrap_intervals("binary", np.zeros(5), np.arange(5.0), resamples=100)
    assert alone["auroc"] == interval_of(np.full(3, np.nan))
    assert alone["log_loss"].value is not None


def test_about_95_of_100_intervals_hold_the_true_value() -> None:
    held = 0
    truth = float(resampled("binary", *drawn(0, 400_000), resamples=0)["auroc"][0])
    for seed in range(1, 101):
        found = bootstrap_intervals("binary", *drawn(seed, 80), seed=seed, resamples=120)["auroc"]
        held += found.low <= truth <= found.high
    assert 88 <= held <= 99
