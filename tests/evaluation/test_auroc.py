"""The area under the ROC curve: DeLong's variance by all pairs, and areas at which it is 0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedilc.evaluation.auroc import Area, area, hanley_mcneil


def by_pairs(y: np.ndarray, models: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The areas and DeLong's covariance of several models, from the definition: every pair is compared."""
    placements = []
    for scores in models:
        compared = scores[y == 1][:, None] - scores[y == 0][None, :]
        placements.append((compared > 0) + 0.5 * (compared == 0))
    areas = np.array([one.mean() for one in placements])
    events = np.cov([one.mean(1) for one in placements]) / (y == 1).sum()
    others = np.cov([one.mean(0) for one in placements]) / (y == 0).sum()
    return areas, np.atleast_2d(events + others)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 25), st.integers(2, 25), st.sampled_from([3, 10, 10_000]), st.integers(0, 2**32))
def test_variance_and_covariance_are_delongs(events: int, others: int, levels: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    y = random.permutation(np.repeat([1.0, 0.0], [events, others]))
    models = [random.integers(0, levels, len(y)) + y * levels / 3 for _ in range(2)]
    areas, covariance = by_pairs(y, models)
    found = [one for scores in models if (one := area(y, scores)) is not None]
    assert [one.value for one in found] == pytest.approx(areas)
    usable = [one.smoothed == one.value and np.ptp(x) > 0 for one, x in zip(found, models, strict=True)]
    for i, j in [(i, j) for i in range(2) for j in range(2) if usable[i] and usable[j]]:
        assert found[i].influence @ found[j].influence == pytest.approx(covariance[i, j], abs=1e-12)


def test_a_published_example_has_its_variance() -> None:
    """Placements by hand: two events above 3 and 1 of 4 others."""
    found = area([1, 1, 0, 0, 0, 0], [3.5, 1.5, 1.0, 2.0, 3.0, 4.0])
    assert found is not None
    over, under = [3 / 4, 1 / 4], [1, 1 / 2, 1 / 2, 0]
    assert found.value == 0.5
    assert found.variance == pytest.approx(np.var(over, ddof=1) / 2 + np.var(under, ddof=1) / 4)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_turning_scores_or_labels_round_turns_the_area_round(seed: int) -> None:
    random = np.random.default_rng(seed)
    y, scores = np.repeat([1.0, 0.0], 12), random.normal(size=24).round(1)
    one, turned, other = area(y, scores), area(y, -scores), area(1 - y, scores)
    assert one is not None
    for reverse in (turned, other):
        assert reverse is not None
        assert reverse.value == pytest.approx(1 - one.value)
        assert reverse.smoothed == pytest.approx(1 - one.smoothed)
        assert reverse.variance == pytest.approx(one.variance)


@pytest.mark.parametrize(("sign", "value", "smoothed"), [(1, 1.0, 10.5 / 11), (-1, 0.0, 0.5 / 11)])
def test_parted_classes_get_a_finite_logit_and_a_variance(sign: int, value: float, smoothed: float) -> None:
    y = np.repeat([1.0, 0.0], [10, 40])
    found = area(y, sign * y)
    assert found is not None
    assert (found.value, found.smoothed) == pytest.approx((value, smoothed))
    assert found.variance == pytest.approx(hanley_mcneil(smoothed, 10, 40))
    other = area(y, np.random.default_rng(0).normal(size=50))
    assert other is not None
    assert found.influence @ other.influence == pytest.approx(0, abs=1e-12)


def test_equal_predictions_have_the_variance_of_no_discrimination() -> None:
    found = area(np.repeat([1.0, 0.0], [10, 40]), np.full(50, 0.3))
    assert found is not None
    assert found.value == found.smoothed == 0.5
    assert found.variance == pytest.approx((10 + 40 + 1) / (12 * 10 * 40))


def test_one_class_has_no_area() -> None:
    assert area(np.ones(20), np.arange(20.0)) is None
    assert area(np.zeros(20), np.arange(20.0)) is None


def test_a_million_examples_take_a_sort_and_no_table_of_pairs() -> None:
    random = np.random.default_rng(0)
    y = (random.random(1_000_000) < 0.1).astype(float)
    found: Area | None = area(y, random.normal(size=len(y)) + y)
    assert found is not None
    assert found.value == pytest.approx(0.7602, abs=0.003)  # of two normal distributions one deviation apart
