"""Counts by predicted risk: what is told, that it adds up, and that no count is below the floor."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedilc.evaluation.estimates import Floors
from fedilc.evaluation.risk_counts import GRID, RiskCounts, risk_counts, share_of_patient


def made(seed: int, rows: int, seeds: int, each: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    random = np.random.default_rng(seed)
    y = (random.random(rows) < random.uniform(0.1, 0.6)).astype(float)
    risks = np.clip(random.beta(1 + 2 * y, 4, (seeds, rows)), 1e-9, 1 - 1e-9)
    return y, risks, None if each == 1 else random.integers(0, max(1, rows // each), rows)


def slowly(y: np.ndarray, risks: np.ndarray, edges: tuple[float, ...]) -> RiskCounts:
    """The counts between these edges, example by example."""
    events, others, predicted = ([0] * (len(edges) + 1) for _ in range(3))
    for one in risks.tolist():
        for label, risk in zip(y.tolist(), one, strict=True):
            place = sum(risk >= edge for edge in edges)
            (events if label else others)[place] += 1
            predicted[place] += risk
    return RiskCounts(edges, tuple(events), tuple(others), tuple(predicted))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(5, 300), st.integers(1, 3), st.sampled_from([1, 2, 5, 10]))
def test_counts_are_those_of_the_examples_and_none_is_below_the_floor(
    seed: int, rows: int, seeds: int, least: int
) -> None:
    y, risks, _ = made(seed, rows, seeds)
    found = risk_counts(y, risks, (0.15, 0.333), Floors(min_cell=least))
    if found is None:
        assert least > 1
        assert min(y.sum(), rows - y.sum()) < least
        return
    expected = slowly(y, risks, found.edges)
    assert (found.events, found.others) == (expected.events, expected.others)
    np.testing.assert_allclose(found.predicted, expected.predicted)
    assert sum(found.events) + sum(found.others) == seeds * rows
    if least == 1:
        assert set(found.edges) == {*GRID, 0.333}
    for counts in zip(found.events, found.others, strict=True):
        assert least == 1 or min(counts) >= least * seeds


@given(st.integers(0, 10_000), st.integers(40, 200))
def test_patients_are_counted_and_not_their_rows(seed: int, rows: int) -> None:
    y, risks, patients = made(seed, rows, 1, each=4)
    found = risk_counts(y, risks, (0.3,), Floors(min_cell=3), patients)
    if found is None:
        return
    place = np.searchsorted(found.edges, risks[0], side="right")
    for number in range(len(found.events)):
        whose = [len(set(patients[(place == number) & (y == label)])) for label in (1, 0)]
        assert min(whose) >= 3


def test_the_plans_thresholds_are_kept_before_those_of_the_grid() -> None:
    y, risks = np.tile([0.0, 1.0], 20), np.linspace(0.05, 0.95, 40)[None]
    assert risk_counts(y, risks, (0.5,), Floors(min_cell=10)).edges == (0.5,)
    assert 0.5 not in risk_counts(y, risks, (0.27, 0.73), Floors(min_cell=5)).edges[:1]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40))
def test_the_shares_of_a_patients_rows_with_one_label_sum_to_one(rows: list[tuple[int, bool]]) -> None:
    patients, labels = (np.array(part) for part in zip(*rows, strict=True))
    shares = share_of_patient(labels, patients)
    for who, label in set(rows):
        assert abs(shares[(patients == who) & (labels == label)].sum() - 1) < 1e-12
