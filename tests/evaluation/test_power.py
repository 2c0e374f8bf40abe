"""Power of the paired t-test: against the share of drawn pairs that it finds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedilc.evaluation.power import detectable_difference, detectable_effect, power_of


def test_power_is_that_of_the_t_test_on_drawn_pairs() -> None:
    generator = np.random.default_rng(0)
    effect = detectable_effect(6)
    drawn = generator.normal(effect, 1, (20_000, 6))
    assert np.mean(stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.01)
    assert power_of(0.0, 6) == pytest.approx(0.05)


def test_more_pairs_find_smaller_differences_and_a_stricter_level_larger_ones() -> None:
    assert detectable_effect(20) < detectable_effect(4) < detectable_effect(4, level=0.05 / 4)
    assert detectable_difference([0.1, 0.2, 0.3]) == pytest.approx(0.1 * detectable_effect(3))
    assert detectable_difference([0.1, 0.2]) is None
