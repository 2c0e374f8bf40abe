"""Methods compared over held-out sites: the corrected t-test, Holm's correction, intervals that agree."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from benchmarks.family_wise_error import SETTINGS, differences, p_values, row
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from site_test import site_test

from fedilc.evaluation.estimates import Estimate
from fedilc.evaluation.significance import compare_methods, holm, mean_difference, overlap_factor

SITES = ("a", "b", "c", "d", "e")
ERRORS = Path(__file__).parents[2] / "results" / "coverage" / "family-wise-error.csv"
found_differences = st.lists(st.integers(-400, 400), min_size=3, max_size=12)


def made(shift: float, spread: float, seed: int = 0) -> dict[str, Estimate]:
    """Scores around 0.8 at each site, with the same influences of 200 examples whatever the method."""
    random = np.random.default_rng(seed)
    shared = np.random.default_rng(99)
    return {
        site: Estimate(0.8 + shift + spread * random.normal(), shared.normal(0, 0.002, 200)) for site in SITES
    }


@given(found_differences, st.integers(2, 30))
def test_standard_error_and_p_are_those_of_exact_sums(found: list[int], training: int) -> None:
    assume(len(set(found)) > 1)
    values = [one / 1024 for one in found]
    interval, p = mean_difference(values, training)
    se, expected = site_test(values, training)
    assert p == pytest.approx(expected, rel=1e-9)
    assert interval.low is not None
    assert interval.high is not None
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * se
    assert (interval.low, interval.high) == pytest.approx((np.mean(values) - reach, np.mean(values) + reach))


@given(found_differences, st.integers(2, 30), st.sampled_from([0.05, 0.05 / 4]), st.floats(0, 0.2))
def test_the_interval_excludes_0_if_and_only_if_p_is_below_the_level(
    found: list[int], training: int, level: float, error: float
) -> None:
    interval, p = mean_difference([one / 1024 for one in found], training, error=error, level=level)
    if interval.low is None or interval.high is None:
        assert len(set(found)) == 1
        return
    assert p is not None
    assume(abs(p - level) > 1e-9)
    assert (interval.low > 0 or interval.high < 0) == (p < level)


@given(found_differences, st.integers(2, 30), st.floats(0, 0.2))
def test_it_is_less_sure_than_the_plain_t_test_and_than_the_examples(
    found: list[int], training: int, error: float
) -> None:
    assume(len(set(found)) > 1)
    values = [one / 1024 for one in found]
    _, p = mean_difference(values, training, error=error)
    assert p is not None
    assert p >= stats.ttest_1samp(values, 0).pvalue - 1e-12
    if error:
        assert p >= 2 * stats.t.sf(abs(np.mean(values)) / error, len(values) - 1) - 1e-12


@given(st.integers(-400, 400), st.integers(3, 40), st.sampled_from([1.0, 0.1, 1e-7]))
def test_equal_differences_never_have_p_0(difference: int, sites: int, unit: float) -> None:
    theirs = unit * np.arange(1, sites + 1)
    ours = unit * (np.arange(1, sites + 1) + difference)
    scores = {
        name: {str(i): Estimate(value, np.zeros(1)) for i, value in enumerate(of)}
        for name, of in (("fedavg", theirs), ("x", ours))
    }
    found = compare_methods(scores, "fedavg", training=sites - 1, higher_is_better=True)["x"]
    assert found.p == (None if difference else 1.0)
    assert (found.over_sites.low, found.over_sites.high) == (None, None)
    _, p = mean_difference([0.1] * sites, sites - 1, error=0.02)
    assert p == pytest.approx(2 * stats.t.sf(5, sites - 1))


def test_p_values_are_corrected_by_holm_and_intervals_hold_together() -> None:
    methods = {"fedavg": made(0, 0.01), "one": made(0.08, 0.01, 1), "two": made(0.005, 0.01, 2)}
    found = compare_methods(methods, "fedavg", training=4, higher_is_better=True)
    expected = {
        name: mean_difference(
            [methods[name][s].value - methods["fedavg"][s].value for s in SITES], 4, level=0.025
        )
        for name in ("one", "two")
    }
    p_values = [p for _, p in expected.values() if p is not None]
    assert [found[name].p for name in expected] == pytest.approx(p_values)
    assert [found[name].corrected_p for name in expected] == pytest.approx(holm(p_values))
    for name, (interval, _) in expected.items():
        ours = found[name].over_sites
        assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high))
    assert (found["one"].verdict, found["two"].verdict) == ("better", "not established")
    turned = compare_methods(methods, "fedavg", training=4, higher_is_better=False)
    assert turned["one"].verdict == "worse"


def test_a_score_that_does_not_decide_has_an_interval_and_no_p() -> None:
    methods = {"fedavg": made(0, 0.01), "one": made(0.08, 0.01, 1)}
    tested = compare_methods(methods, "fedavg", training=4, higher_is_better=True)["one"]
    found = compare_methods(methods, "fedavg", training=4, higher_is_better=True, tested=False)["one"]
    assert tested.p is not None
    assert (found.p, found.corrected_p, found.verdict) == (None, None, "not tested")
    assert found.over_sites == tested.over_sites


def test_intervals_over_examples_are_paired_so_that_shared_noise_cancels() -> None:
    methods = {"fedavg": made(0, 0.0), "one": made(0.05, 0.0)}
    found = compare_methods(methods, "fedavg", training=4, higher_is_better=True)["one"]
    assert (found.difference.low, found.difference.high) == pytest.approx((0.05, 0.05))
    assert (found.p, found.over_sites.low) == (None, None)


def test_sites_that_agree_by_chance_are_not_surer_than_their_examples() -> None:
    methods = {
        "fedavg": {site: Estimate(0.8, np.zeros(1)) for site in SITES},
        "one": {site: Estimate(0.81, np.array([0.03, 0.04])) for site in SITES},
    }
    found = compare_methods(methods, "fedavg", training=4, higher_is_better=True)["one"]
    error = 0.05 / np.sqrt(len(SITES))
    assert found.p == pytest.approx(2 * stats.t.sf(0.01 / error, 4))


def test_two_sites_are_compared_and_not_tested() -> None:
    methods = {
        name: {site: made(shift, 0.01)[site] for site in SITES[:2]}
        for name, shift in (("fedavg", 0), ("x", 0.1))
    }
    found = compare_methods(methods, "fedavg", training=1, higher_is_better=True)["x"]
    assert (found.verdict, found.p, found.corrected_p, found.over_sites.low) == (
        *("not tested", None, None, None),
    )
    assert found.over_sites.value == pytest.approx(0.1)


def test_the_simulated_test_is_the_one_that_studies_use() -> None:
    drawn, variance = differences(SETTINGS[0], 4, 20, seed=0)
    ours = p_values(drawn, variance, overlap_factor(4, 3))
    for study in range(20):
        for method in range(drawn.shape[2]):
            error = np.sqrt(variance[study, :, method].sum()) / 4
            _, p = mean_difference(drawn[study, :, method], 3, error=float(error))
            assert ours[study, method] == pytest.approx(p)


def test_the_committed_errors_are_the_commands_and_below_5_percent_unless_few_columns_rule() -> None:
    with ERRORS.open(encoding="utf-8") as file:
        committed = list(csv.DictReader(file))
    again = {name: str(value) for name, value in row(SETTINGS[2], 4, 10_000).items()}
    assert again in committed
    usual = [one for one in committed if one["units"] != "1:30"]
    assert {one["sites"] for one in usual} == {"4", "8", "20"}
    assert max(float(one["corrected"]) for one in usual) <= 0.05
    assert max(float(one["plain t-test"]) for one in usual if one["sites"] == "4") > 0.1
