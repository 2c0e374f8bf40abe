"""Intervals over examples: DeLong's and others that cover; percentiles as scipy's from the same draws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from fedilc.evaluation import intervals
from fedilc.evaluation.estimates import area
from fedilc.evaluation.intervals import (
    Interval,
    interval_of,
    resampled,
    score_interval,
    score_intervals,
)
from fedilc.evaluation.metrics import SCORES, scores
from fedilc.seeds import numpy_generator


def drawn(seed: int, examples: int = 60) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 1.5, examples)
    return (generator.random(examples) < expit(logits)).astype(float), logits


def test_percentiles_are_scipys_of_the_same_draws() -> None:
    y, logits = drawn(1)
    ours = resampled("binary", y, logits, seed=7, resamples=300)
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
        found = interval_of(ours[name])
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
        assert found.value == pytest.approx(statistic(np.arange(len(y))))


def test_the_interval_of_an_auroc_is_delongs_on_the_logit_scale() -> None:
    y, logits = drawn(1)
    found, one = score_interval("binary", "auroc", y, [logits]), area(y, logits)
    assert one is not None
    reach = stats.norm.ppf(0.975) * np.sqrt(one.variance) / (one.value * (1 - one.value))
    middle = np.log(one.value / (1 - one.value))
    assert (found.low, found.high) == pytest.approx((expit(middle - reach), expit(middle + reach)))


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


def test_eight_events_in_eight_thousand_examples_have_no_area_and_a_log_loss_without_limits() -> None:
    y = np.repeat([1.0, 0.0], [8, 7992])
    logits = np.random.default_rng(0).normal(-7, 1, 8000)
    found = score_intervals("binary", y, logits)
    for name in ("auroc", "auprc", "calibration_slope", "calibration_intercept"):
        assert found[name] == Interval(None, None, None, reason="8 events, fewer than 10")
        assert np.isnan(resampled("binary", y, logits, resamples=2)[name]).all()
    assert str(found["auroc"]) == "not estimable (8 events, fewer than 10)"
    assert found["log_loss"].value is not None
    assert (found["log_loss"].low, found["log_loss"].caution) == (None, "8 events, fewer than 10")
    assert found["accuracy"].low is not None


def test_fewer_than_a_hundred_events_have_an_area_with_a_caution() -> None:
    y = np.repeat([1.0, 0.0], [10, 200])
    found = score_intervals("binary", y, np.linspace(1, -1, 210))
    assert (found["auroc"].value, found["auroc"].high) == (1.0, 1.0)
    assert 0.6 < found["auroc"].low < 0.8  # ten events cannot show more: 0.025^(1/10) is 0.69
    assert found["auroc"].caution == "10 events, fewer than 100"
    assert str(found["auroc"]).endswith("(caution: 10 events, fewer than 100)")
    assert found["calibration_slope"].value is None  # the classes are separated
    many = score_intervals("binary", np.repeat([1.0, 0.0], 100), np.linspace(1, -1, 200))
    assert many["auroc"].caution is None


@pytest.mark.parametrize(("examples", "share"), [(50, 0.4), (150, 0.1), (400, 0.05)])
def test_about_95_of_100_intervals_hold_the_true_value_with_few_events_too(
    examples: int, share: float
) -> None:
    def population(generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        logits = generator.normal(np.log(share / (1 - share)) - 0.3, 1.2, count)
        return (generator.random(count) < expit(0.8 * logits + 0.2)).astype(float), logits

    truth = scores("binary", *population(np.random.default_rng(0), 400_000))
    held: dict[str, list[bool]] = {}
    for seed in range(1, 1001):
        drawn = population(np.random.default_rng(seed), examples)
        for name, found in score_intervals("binary", *drawn).items():
            if found.low is not None:
                held.setdefault(name, []).append(found.low <= truth[name][0] <= found.high)
    assert held.keys() == set(SCORES["binary"])
    assert all(0.92 <= np.mean(inside) <= 0.985 for inside in held.values()), {
        name: np.mean(inside) for name, inside in held.items()
    }


def test_two_seeds_have_the_mean_score_and_an_interval_around_it() -> None:
    y, logits = drawn(3, 200)
    other = logits + np.random.default_rng(4).normal(0, 1, 200)
    one, two = (score_interval("binary", "auroc", y, [given]) for given in (logits, other))
    both = score_interval("binary", "auroc", y, [logits, other])
    assert both.value == pytest.approx((one.value + two.value) / 2)
    assert both.low < both.value < both.high
