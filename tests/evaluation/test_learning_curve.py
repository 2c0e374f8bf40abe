"""The learning curve of a recalibration: its scores one draw at a time, and its last sentence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from fedilc.evaluation.learning_curve import (
    CurvePoint,
    Spread,
    answer,
    learning_curve,
    possible_sizes,
    scores_of_lines,
)
from fedilc.evaluation.metrics import scores


def site(rows: int, seed: int = 0, intercept: float = -1.0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    z = random.normal(0, 1.5, rows)
    return (random.random(rows) < expit(intercept + z)).astype(float), z[:, None]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_scores_of_lines_are_those_of_each_model_alone(seed: int) -> None:
    random = np.random.default_rng(seed)
    y, z = site(80, seed)
    counts = random.integers(0, 2, (3, 80)).astype(float)
    lines = np.column_stack([random.uniform(0.3, 2, 3), random.normal(size=3)])
    found = scores_of_lines("binary", y, z, lines, counts)
    labels, logits = random.integers(0, 3, 80).astype(float), random.normal(size=(80, 3))
    wide = np.column_stack([lines[:, 0], random.normal(size=(3, 3))])
    classes = scores_of_lines("multiclass", labels, logits, wide, counts)
    numbers = scores_of_lines("regression", labels, z, lines, counts)
    for place, row in enumerate(counts):
        moved = lines[place, 1] + lines[place, 0] * z[:, 0]
        one = scores("binary", y, moved, row[None])
        for name in ("calibration_intercept", "calibration_slope", "log_loss", "brier"):
            assert found[name][place] == pytest.approx(one[name][0], rel=1e-5, abs=1e-7)
        assert found["oe_ratio"][place] == pytest.approx(row @ y / (row @ expit(moved)))
        one = scores("multiclass", labels, wide[place, 1:] + wide[place, 0] * logits, row[None])
        assert classes["log_loss"][place] == pytest.approx(one["log_loss"][0])
        assert classes["accuracy"][place] == pytest.approx(one["accuracy"][0])
        one = scores("regression", labels, moved, row[None])
        assert numbers["rmse"][place] == pytest.approx(one["rmse"][0])
        assert numbers["mae"][place] == pytest.approx(one["mae"][0])


def test_a_shifted_model_needs_few_patients_and_the_same_call_gives_the_same_bits() -> None:
    y, z = site(300)
    found = learning_curve("binary", "intercept", y, z)
    assert [point.patients for point in found] == [50, 100, 200]
    assert found == learning_curve("binary", "intercept", y, z)
    assert found != learning_curve("binary", "intercept", y, z, seed=1)
    hundred = found[1]
    assert abs(hundred.after["calibration_intercept"].mean) < 0.2
    assert hundred.before["calibration_intercept"].mean < -0.8
    assert hundred.after["log_loss"].mean < hundred.before["log_loss"].mean
    assert answer("binary", found).startswith("50 local patients are enough here")


def test_a_draw_without_enough_events_leaves_the_model_as_it_is() -> None:
    y, z = site(400, intercept=-3.0)
    fifty = learning_curve("binary", "intercept", y, z, sizes=[50])[0]
    assert 0 < fifty.refitted < fifty.draws
    assert fifty.lower <= fifty.refitted / fifty.draws


def test_rows_of_one_patient_are_drawn_together() -> None:
    y, z = site(120)
    doubled = learning_curve(
        "binary", "slope", np.repeat(y, 2), np.repeat(z, 2, 0), np.repeat(np.arange(120), 2), sizes=[50]
    )[0]
    single = learning_curve("binary", "slope", y, z, sizes=[50])[0]
    assert doubled.refitted == single.refitted
    for name, spread in single.after.items():
        assert doubled.after[name].mean == pytest.approx(spread.mean, rel=1e-5, abs=1e-6)


def test_sizes_leave_enough_others_to_score_them() -> None:
    y, z = site(149)
    assert possible_sizes("binary", y, z, None) == (50,)
    assert possible_sizes("binary", (np.arange(149) < 14).astype(float), z, None) == ()
    too_few = "There are too few patients for a learning curve: a draw of 50 must leave 50 others to score it"
    assert answer("binary", []) == f"{too_few}, with 10 events and 10 non-events among them on average."
    assert answer("regression", []) == f"{too_few}."


def test_a_model_that_is_right_as_it_is_is_not_said_to_gain() -> None:
    steady = Spread(0.0, 0.1)
    before = {"log_loss": Spread(0.5, 0.0), "calibration_intercept": steady}
    worse = {"log_loss": Spread(0.51, 0.0), "calibration_intercept": steady}
    said = answer("binary", [CurvePoint(50, 200, 200, 0.1, before, worse)])
    assert said.startswith(
        "Recalibration is not shown to help here with any number of local patients tried (50)"
    )
