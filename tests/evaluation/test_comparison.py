"""Methods compared over sites: scipy's paired t-test, Holm's correction, intervals of paired resamples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedilc.evaluation.significance import compare_methods, detectable_effect, holm

SITES = ("a", "b", "c", "d", "e")


def made(shift: float, spread: float, seed: int = 0) -> dict[str, np.ndarray]:
    """Scores around 0.8 at each site, each followed by 200 resamples."""
    random = np.random.default_rng(seed)
    shared = np.random.default_rng(99)
    found = {}
    for site in SITES:
        noise = np.concatenate([[0.0], shared.normal(0, 0.03, 200)])
        found[site] = 0.8 + shift + spread * random.normal() + noise
    return found


def test_p_values_are_scipys_over_sites_and_holms_over_methods() -> None:
    methods = {"fedavg": made(0, 0.01), "one": made(0.05, 0.01, 1), "two": made(0.005, 0.01, 2)}
    found = compare_methods(methods, "fedavg", higher_is_better=True)
    p_values = [
        stats.ttest_rel(
            [methods[name][site][0] for site in SITES], [methods["fedavg"][site][0] for site in SITES]
        ).pvalue
        for name in ("one", "two")
    ]
    assert [found[name].t_p for name in ("one", "two")] == pytest.approx(p_values)
    assert [found[name].corrected_p for name in ("one", "two")] == pytest.approx(holm(p_values))
    assert (found["one"].verdict, found["two"].verdict) == ("better", "not established")
    turned = compare_methods(methods, "fedavg", higher_is_better=False)
    assert turned["one"].verdict == "worse"


def test_intervals_are_of_paired_resamples_so_that_shared_noise_cancels() -> None:
    methods = {"fedavg": made(0, 0.0), "one": made(0.05, 0.0)}
    found = compare_methods(methods, "fedavg", higher_is_better=True)["one"]
    assert (found.difference.low, found.difference.high) == pytest.approx((0.05, 0.05))
    assert found.detectable_here == pytest.approx(0, abs=1e-12)


def test_what_could_be_detected_is_at_the_level_of_holms_first_step() -> None:
    methods = {"fedavg": made(0, 0.01), "one": made(0, 0.02, 1), "two": made(0, 0.03, 2)}
    found = compare_methods(methods, "fedavg", higher_is_better=True)
    differences = [methods["one"][site][0] - methods["fedavg"][site][0] for site in SITES]
    expected = detectable_effect(5, 0.05 / 2) * np.std(differences, ddof=1)
    assert found["one"].detectable == pytest.approx(expected)


def test_two_sites_are_compared_and_not_tested() -> None:
    methods = {
        name: {site: made(shift, 0.01)[site] for site in SITES[:2]}
        for name, shift in (("fedavg", 0), ("x", 0.1))
    }
    found = compare_methods(methods, "fedavg", higher_is_better=True)["x"]
    assert (found.verdict, found.t_p, found.corrected_p, found.detectable) == ("not tested", None, None, None)
    assert found.difference.value == pytest.approx(0.1)
