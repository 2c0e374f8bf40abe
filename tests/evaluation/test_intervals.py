"""Intervals over examples: DeLong's and others that cover; means over sites as wide as a bootstrap's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from fedilc.evaluation.auroc import area
from fedilc.evaluation.estimates import difference, own_estimate
from fedilc.evaluation.intervals import Interval, mean_error, mean_interval, score_interval, score_intervals
from fedilc.evaluation.metrics import SCORES, scores


def drawn(seed: int, examples: int = 60) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 1.5, examples)
    return (generator.random(examples) < expit(logits)).astype(float), logits


def resampled_mean(sites: list[tuple[np.ndarray, np.ndarray, np.ndarray]], score: str) -> np.ndarray:
    """Means over sites of a score, and differences of two models, of 1,000 samples drawn with replacement."""
    random, means = np.random.default_rng(5), []
    for y, one, two in sites:
        drawn = random.integers(0, len(y), (1000, len(y)))
        counts = np.stack([np.bincount(rows, minlength=len(y)) for rows in drawn]).astype(float)
        both = [scores("binary", y, logits, counts)[score] for logits in (one, two)]
        means.append([both[0], both[1] - both[0]])
    return np.mean(means, axis=0)


@pytest.mark.parametrize("score", SCORES["binary"])
def test_means_over_sites_and_paired_differences_have_the_spread_of_a_bootstrap(score: str) -> None:
    sites = []
    for seed in range(3):
        y, logits = drawn(seed, 400)
        sites.append((y, logits, 0.8 * logits + np.random.default_rng(9 + seed).normal(0, 0.4, 400)))
    ours, others = ([own_estimate("binary", score, site[0], [site[n]]) for site in sites] for n in (1, 2))
    apart = [difference(two, one) for one, two in zip(ours, others, strict=True)]
    means, differences = resampled_mean(sites, score)
    assert mean_error(ours) == pytest.approx(means.std(), rel=0.15)
    assert mean_error(apart) == pytest.approx(differences.std(), rel=0.2)
    found = mean_interval(ours, score)
    assert (found.low, found.high) == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.4 * means.std())
    assert found.value == pytest.approx(np.mean([one.value for one in ours]))


def test_a_mean_at_the_end_of_its_range_has_limits_inside_it_and_an_unknown_score_has_no_mean() -> None:
    y = np.repeat([1.0, 0.0], 20)
    perfect = [own_estimate("binary", "auroc", y, [y - 0.5])] * 2
    found = mean_interval(perfect, "auroc")
    assert found.value == found.high == 1.0
    assert found.low is not None
    assert 0.9 < found.low < 1.0
    unknown = own_estimate("binary", "auroc", y[:25], [y[:25]])
    assert np.isnan(unknown.value)
    assert mean_interval([*perfect, unknown], "auroc") == Interval(None, None, None)
    assert mean_interval([]) == Interval(None, None, None)


def test_the_interval_of_an_auroc_is_delongs_on_the_logit_scale() -> None:
    y, logits = drawn(1)
    found, one = score_interval("binary", "auroc", y, [logits]), area(y, logits)
    assert one is not None
    reach = stats.norm.ppf(0.975) * np.sqrt(one.variance) / (one.value * (1 - one.value))
    middle = np.log(one.value / (1 - one.value))
    assert (found.low, found.high) == pytest.approx((expit(middle - reach), expit(middle + reach)))


def test_eight_events_in_eight_thousand_examples_have_no_area_and_a_log_loss_without_limits() -> None:
    y = np.repeat([1.0, 0.0], [8, 7992])
    logits = np.random.default_rng(0).normal(-7, 1, 8000)
    found = score_intervals("binary", y, logits)
    for name in ("auroc", "auprc", "calibration_slope", "calibration_intercept"):
        assert found[name] == Interval(None, None, None, reason="8 events, fewer than 10")
        assert np.isnan(own_estimate("binary", name, y, [logits]).value)
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
