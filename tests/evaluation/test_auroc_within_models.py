"""The AUROC over pairs of one model: pairs by counting, its interval, and what shifts between models do."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_clinical import paired_area

from fedilc.evaluation.estimates import own_estimate
from fedilc.evaluation.intervals import Interval, score_interval


def auroc_within(sites: list[tuple[object, list[object]]], patients: object = None) -> Interval:
    """The interval over sites, each of which has labels, and outputs per seed."""
    y = np.concatenate([np.asarray(labels, float) for labels, _ in sites])
    outputs = [np.concatenate(parts) for parts in zip(*(of for _, of in sites), strict=True)]
    models = np.repeat(np.arange(len(sites)), [len(labels) for labels, _ in sites])
    return score_interval("binary", "auroc", y, outputs, patients, models)


SITE = st.lists(st.tuples(st.booleans(), st.integers(-4, 4)), min_size=1, max_size=12)


@given(st.lists(SITE, min_size=1, max_size=4), st.lists(st.integers(-50, 50), min_size=5, max_size=5))
def test_it_counts_pairs_of_one_site_and_ignores_shifts_between_sites(
    sites: list[list[tuple[bool, int]]], shifts: list[int]
) -> None:
    enough = [(True, 1), (True, 0), (False, 0)] * 10
    rows = [tuple(zip(*site, strict=True)) for site in [enough, *sites]]
    given_sites = [(np.array(y, float), [np.array(values, float)]) for y, values in rows]
    found = auroc_within(given_sites)
    assert found.value == pytest.approx(paired_area([(list(map(int, y)), values) for y, values in rows]))
    moved = [(y, [outputs[0] + shift]) for (y, outputs), shift in zip(given_sites, shifts, strict=False)]
    again = auroc_within(moved)
    assert (again.value, again.low, again.high) == pytest.approx((found.value, found.low, found.high))
    assert found.low < found.value < found.high


def test_one_site_has_its_own_auroc_and_interval() -> None:
    random = np.random.default_rng(0)
    y = (random.random(200) < 0.4).astype(float)
    outputs = [y + random.normal(size=200) for _ in range(2)]
    found, own = auroc_within([(y, outputs)]), score_interval("binary", "auroc", y, outputs)
    assert found.value == pytest.approx(own.value)
    assert found.low == pytest.approx(own.low, abs=2e-3)
    assert found.high == pytest.approx(own.high, abs=2e-3)


def test_the_interval_covers() -> None:
    random, covered = np.random.default_rng(0), 0
    sizes = (30, 60, 120)
    truth = NormalDist().cdf(0.5**0.5)  # of two normals whose means are one deviation apart
    for _ in range(600):
        sites = []
        for size in sizes:
            y = (random.random(size) < 0.5).astype(float)
            sites.append((y, [y + random.normal(size=size) + random.normal()]))
        found = auroc_within(sites)
        covered += found.low <= truth <= found.high
    assert 0.93 <= covered / 600 <= 0.975


def test_few_events_that_have_a_partner_are_not_estimable() -> None:
    assert (
        auroc_within([([1] * 50, [[0.0] * 50]), ([0, 1] * 5, [[0.0] * 10])]).reason
        == "5 events, fewer than 10"
    )
    assert auroc_within([([1] * 50, [[0.0] * 50])]).reason == (
        "no pairs of an event and a non-event that one model predicts"
    )


def test_folds_of_two_events_each_have_the_variance_that_repetitions_have() -> None:
    """Models of folds have shifts of their own; DeLong's variance of one order of all would be another."""
    random, values, variances = np.random.default_rng(1), [], []
    y = np.tile(np.repeat([1.0, 0.0], [2, 8]), 5)
    models = np.repeat(np.arange(5), 10)
    for _ in range(2000):
        outputs = y + random.normal(size=50) + np.repeat(random.normal(size=5), 10)
        found = own_estimate("binary", "auroc", y, [outputs], models=models)
        values.append(found.value)
        variances.append(found.variance)
    assert np.mean(values) == pytest.approx(NormalDist().cdf(0.5**0.5), abs=0.005)
    # With two events per fold the shares of pairs of each example are themselves uncertain: DeLong's variance
    # is a little too large.
    assert 1 <= np.mean(variances) / np.var(values) <= 1.15


def test_rows_of_one_patient_are_added_before_they_are_squared() -> None:
    random = np.random.default_rng(0)
    y = np.tile([0.0, 1.0], 40)
    site = (y, [y + random.normal(size=80)])
    twice = [(np.repeat(y, 2), [np.repeat(site[1][0], 2)]) for y, _ in [site, site]]
    patients = np.repeat(np.arange(160), 2)
    found, rows = auroc_within(twice, patients), auroc_within(twice)
    once = auroc_within([site, site])
    assert found.value == pytest.approx(once.value)
    assert found.high - found.low == pytest.approx(once.high - once.low, rel=0.02)
    assert rows.high - rows.low < 0.75 * (found.high - found.low)
