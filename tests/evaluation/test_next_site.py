"""What to expect at the next site: which interval is the headline, and on which scale."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from benchmarks.coverage import REPETITIONS, SETTINGS, TAU, overlap_rows
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from fedilc.evaluation.estimates import Estimate, estimate
from fedilc.evaluation.next_site import next_integrated, next_site, random_effects
from fedilc.evaluation.significance import mean_difference

Y, V = [0.9, 1.4, 1.1, 1.6, 1.2, 0.7], [0.04, 0.02, 0.1, 0.05, 0.03, 0.06]


def sites(k: int) -> list[Estimate]:
    return [Estimate(y, np.array([np.sqrt(v)])) for y, v in zip(Y[:k], V[:k], strict=True)]


@pytest.mark.parametrize("k", [3, 4])
def test_up_to_four_sites_the_interval_with_the_empirical_prior_is_the_headline_of_an_auroc(k: int) -> None:
    found, effects = next_site(sites(k), "auroc"), random_effects(Y[:k], V[:k])
    at = expit(effects.mean)
    slope = 1 / (at * (1 - at))
    expected = expit(next_integrated(Y[:k], V[:k], (0.055 * slope, 0.015 * slope)))
    assert (found.low, found.high) == (found.prior_low, found.prior_high) == pytest.approx(tuple(expected))
    assert found.headline == "empirical"
    assert (found.reml_low, found.reml_high) == pytest.approx(
        (expit(effects.next_low), expit(effects.next_high))
    )
    assert (found.mean, found.tau, found.sites) == pytest.approx((at, effects.tau, k))


def test_from_five_sites_on_tau_is_integrated_with_jeffreys_prior() -> None:
    found = next_site(sites(6), "auroc")
    assert found.headline == "Jeffreys"
    assert (found.low, found.high) == pytest.approx(tuple(expit(next_integrated(Y, V))))
    assert (found.low, found.high) == (found.jeffreys_low, found.jeffreys_high)
    assert found.prior_low is not None
    assert found.prior_low > found.low


def test_near_one_the_empirical_prior_does_not_let_a_site_be_worse_than_chance() -> None:
    """Converted at a mean of .99, tau would be 5.7 on the logit scale, and the limits 0.00 and 1.00."""
    perfect = estimate("binary", "auroc", [0] * 50 + [1] * 50, [np.arange(100)])
    assert perfect is not None
    found = next_site([perfect] * 4, "auroc", 3)
    assert found.headline == "empirical"
    assert 0.9 < found.low < found.mean < found.high < 1


def test_other_scores_and_differences_have_no_empirical_prior() -> None:
    for score in (None, "calibration_slope"):
        found = next_site(sites(4), score)
        assert (found.headline, found.prior_low) == ("Jeffreys", None)
        assert (found.low, found.high) == pytest.approx(next_integrated(Y[:4], V[:4]))
    ratio = next_site(sites(4), "oe_ratio")
    assert (ratio.low, ratio.high) == pytest.approx(tuple(np.exp(next_integrated(Y[:4], V[:4]))))


def test_a_scale_that_turns_round_keeps_low_below_high() -> None:
    found = next_site([Estimate(-y.value, y.influence) for y in sites(5)], "r2")
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1 - np.exp(-1.0) < found.high < 1


def test_a_variance_that_is_zero_but_for_rounding_does_not_take_all_weight() -> None:
    exact, rounded = (next_site([*sites(3), Estimate(2.0, np.array([s]))], None) for s in (0.0, 1e-17))
    assert rounded == exact


@pytest.mark.parametrize(("k", "said"), [(0, "there is none"), (1, "there is 1"), (2, "there are 2")])
def test_fewer_than_three_sites_get_a_sentence(k: int, said: str) -> None:
    found = next_site(sites(k), "auroc")
    assert found.low is None
    assert found.reason == f"at least 3 sites with an estimable score are needed, and {said}"


@given(st.integers(3, 6), st.floats(-3, 3))
def test_the_mean_lies_inside_its_interval_and_that_inside_the_one_for_the_next_site(
    k: int, by: float
) -> None:
    given = [Estimate(one.value + by, one.influence) for one in sites(k)]
    found = next_site(given, "auroc")
    assert 0 < found.reml_low < found.hk_low < found.mean < found.hk_high < found.reml_high < 1
    assert 0 < found.low < found.mean_low < found.mean < found.mean_high < found.high < 1
    shared = next_site(given, "auroc", k - 1)
    assert shared.low < found.low < found.high < shared.high
    assert shared.mean_low < found.mean_low < found.mean_high < shared.mean_high
    assert (shared.reml_low, shared.hk_high) == (found.reml_low, found.hk_high)


def test_models_that_share_training_sites_have_the_variance_of_nadeau_and_bengio() -> None:
    """Sites measured without error: the interval of the mean is that of the corrected t-test."""
    values = [0.01, 0.03, 0.02, 0.04]
    found = next_site([Estimate(value, np.zeros(1)) for value in values], None, 3)
    corrected, _ = mean_difference(values, training=3)
    assert (found.mean_low, found.mean_high) == pytest.approx((corrected.low, corrected.high), rel=1e-4)


def test_the_committed_coverage_with_shared_training_sites_is_the_commands() -> None:
    path = Path(__file__).parents[2] / "results" / "coverage" / "next-site-overlap.csv"
    with path.open(encoding="utf-8") as file:
        committed = list(csv.DictReader(file))
    for row in overlap_rows(SETTINGS[0], TAU, 4, REPETITIONS):
        assert {name: str(value) for name, value in row.items()} in committed
