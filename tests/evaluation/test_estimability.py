"""What a score rests on: the rarest outcomes, counted by hand; the limits are inclusive."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedilc.evaluation.estimates import CAUTION_COUNT, MIN_COUNT, Support, size, support
from fedilc.evaluation.metrics import SCORES

BY_CLASS = {"auroc", "auprc", "log_loss_refitted", "calibration_slope", "calibration_intercept"}


@given(st.lists(st.integers(0, 1), min_size=1, max_size=300))
def test_binary_ranking_and_calibration_rest_on_the_rarer_class_and_means_on_the_examples(
    labels: list[int],
) -> None:
    for score in SCORES["binary"]:
        found = support("binary", np.array(labels, float), score)
        assert found.count == (min(sum(labels), labels.count(0)) if score in BY_CLASS else len(labels))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=100))
def test_areas_of_several_classes_rest_on_the_rarest_class_that_occurs(labels: list[int]) -> None:
    counts = Counter(labels)
    expected = min(counts.values()) if len(counts) > 1 else 0
    assert support("multiclass", labels, "auroc").count == expected
    assert support("multiclass", labels, "accuracy").count == len(labels)


@pytest.mark.parametrize("score", SCORES["regression"])
def test_scores_of_quantities_rest_on_the_examples(score: str) -> None:
    assert support("regression", np.linspace(0, 1, 9), score).reason == "9 examples, fewer than 10"
    assert support("huber", np.linspace(0, 1, 10), score).reason is None


@pytest.mark.parametrize(
    ("count", "reason", "caution"),
    [
        (0, "no events", None),
        (1, "1 event, fewer than 10", None),
        (MIN_COUNT - 1, "9 events, fewer than 10", None),
        (MIN_COUNT, None, "10 events, fewer than 100"),
        (CAUTION_COUNT - 1, None, "99 events, fewer than 100"),
        (CAUTION_COUNT, None, None),
    ],
)
def test_the_limits_themselves_are_enough(count: int, reason: str | None, caution: str | None) -> None:
    found = Support(count, "events")
    assert (found.reason, found.caution) == (reason, caution)


def test_one_example_is_singular_also_of_a_class() -> None:
    assert Support(1, "non-events").reason == "1 non-event, fewer than 10"
    assert support("multiclass", [0, 0, 1], "auroc").reason == "1 example of the rarest class, fewer than 10"
    assert support("multiclass", [2, 2], "auroc").reason == "no examples of a second class"


def test_the_size_of_a_set_is_told_in_events() -> None:
    assert size("binary", [0, 1, 1]) == "2 events and 1 non-event"
    assert size("multiclass", [0] * 1000) == "1,000 examples"
