"""The AUROC within sites: pairs by counting, its interval, and what shifts between sites do."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_clinical import paired_area

from fedilc.evaluation.intervals import score_interval
from fedilc.evaluation.stratified import auroc_within

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
    assert auroc_within(moved) == found
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
    assert auroc_within([([1] * 50, [[0.0] * 50])]).reason == "no site has both events and non-events"
