"""Decision curves: the net benefit by counting, its interval, and what it does at the ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_clinical import counted_net_benefit

from fedilc.evaluation.decision_curve import net_benefit, treat_all

LOGITS = st.floats(-8, 8)
SETS = st.lists(st.tuples(st.booleans(), LOGITS), min_size=1, max_size=40)
THRESHOLDS = st.floats(0.01, 0.99)


@given(SETS, THRESHOLDS)
def test_it_is_true_positives_minus_weighted_false_positives(
    rows: list[tuple[bool, float]], threshold: float
) -> None:
    y, logits = zip(*rows, strict=True)
    # Risks at a threshold to within rounding may fall on either side of it.
    risks = [1 / (1 + np.exp(-one)) for one in logits]
    if min(abs(risk - threshold) for risk in risks) < 1e-12:
        return
    [found] = net_benefit(y, [logits], [threshold])
    assert found.value == pytest.approx(counted_net_benefit(list(map(int, y)), risks, threshold), abs=1e-12)


@given(SETS, THRESHOLDS)
def test_no_model_beats_one_that_knows_and_treating_all_is_a_model(
    rows: list[tuple[bool, float]], threshold: float
) -> None:
    y, logits = (np.array(part, float) for part in zip(*rows, strict=True))
    [found], [everyone] = net_benefit(y, [logits], [threshold]), treat_all(y, [threshold])
    [knowing] = net_benefit(y, [np.where(y > 0, 40.0, -40.0)], [threshold])
    assert found.value is not None
    assert everyone.value is not None
    assert max(found.value, everyone.value) <= y.mean() + 1e-12
    assert knowing.value == pytest.approx(y.mean())
    odds = threshold / (1 - threshold)
    assert everyone.value == pytest.approx(y.mean() - (1 - y.mean()) * odds)


@given(SETS, SETS, THRESHOLDS)
def test_that_of_two_sets_together_is_their_mean_by_size(
    one: list[tuple[bool, float]], other: list[tuple[bool, float]], threshold: float
) -> None:
    values = []
    for rows in (one, other, one + other):
        y, logits = zip(*rows, strict=True)
        values.append(net_benefit(y, [logits], [threshold])[0].value)
    together = (len(one) * values[0] + len(other) * values[1]) / (len(one) + len(other))
    assert values[2] == pytest.approx(together, abs=1e-9)


def test_the_interval_covers_the_net_benefit_of_the_population() -> None:
    random, threshold, covered, truth = np.random.default_rng(0), 0.3, 0, 0.0
    z = random.normal(-0.5, 1.2, 1_000_000)
    risks = 1 / (1 + np.exp(-z))
    worth = risks - (1 - risks) * threshold / (1 - threshold)
    truth = float(np.where(risks >= threshold, worth, 0).mean())
    for _ in range(1000):
        drawn = random.normal(-0.5, 1.2, 300)
        y = random.random(300) < 1 / (1 + np.exp(-drawn))
        [found] = net_benefit(y, [drawn], [threshold])
        covered += found.low <= truth <= found.high
    assert 0.93 <= covered / 1000 <= 0.97


def test_seeds_that_agree_are_one_and_those_that_do_not_widen_the_interval() -> None:
    random = np.random.default_rng(1)
    z = random.normal(size=400)
    y = random.random(400) < 1 / (1 + np.exp(-z))
    [one], [twice] = net_benefit(y, [z], [0.4]), net_benefit(y, [z, z], [0.4])
    assert twice == one
    [mixed] = net_benefit(y, [z, -z], [0.4])
    assert mixed.high - mixed.low > 2 * (one.high - one.low)


def test_few_events_have_a_value_without_limits() -> None:
    [found] = net_benefit([1] * 9 + [0] * 91, [np.linspace(2, -2, 100)], [0.2])
    assert found.value is not None
    assert found.low is None
    assert found.caution == "9 events, fewer than 10"


def test_rows_of_one_patient_are_added_before_they_are_squared() -> None:
    random = np.random.default_rng(4)
    z = random.normal(size=200)
    y = (random.random(200) < 1 / (1 + np.exp(-z))).astype(float)
    [one] = net_benefit(y, [z], [0.4])
    [rows] = net_benefit(np.repeat(y, 4), [np.repeat(z, 4)], [0.4])
    [found] = net_benefit(np.repeat(y, 4), [np.repeat(z, 4)], [0.4], np.repeat(np.arange(200), 4))
    assert found.value == pytest.approx(one.value)
    assert rows.high - rows.low == pytest.approx((one.high - one.low) / 2, rel=0.01)
    # Student's t with 199 degrees in place of the normal distribution.
    assert found.high - found.low == pytest.approx((one.high - one.low) * 1.97196 / 1.95996, rel=1e-3)
    [few] = net_benefit(np.repeat([1.0, 0.0], [12, 88]), [np.zeros(100)], [0.2], np.arange(100) // 4)
    assert few.caution == "3 patients with events, fewer than 10"
