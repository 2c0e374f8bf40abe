"""Calibration plots: groups of examples that were predicted alike, and how sure their means are."""

from __future__ import annotations

import pytest

from fedilc.report.html.charts import wilson_limits
from fedilc.report.html.prediction_charts import Counts, dots


def test_neighbouring_risks_are_grouped_until_they_are_enough() -> None:
    line = dots("", 0, Counts((0.2, 0.4, 0.6), (1, 3, 9, 12), (14, 11, 5, 3), (1.5, 4.2, 7.0, 12.0), 1))
    assert line.x == pytest.approx([1.5 / 15, 11.2 / 28, 12.0 / 15])
    assert line.y == pytest.approx([1 / 15, 12 / 28, 12 / 15])
    assert all(low <= share <= high for low, share, high in zip(line.low, line.y, line.high, strict=True))
    twice = dots("", 0, Counts((0.2, 0.4, 0.6), (2, 6, 18, 24), (28, 22, 10, 6), (3.0, 8.4, 14, 24), 2))
    assert [*twice.x, *twice.low, *twice.high] == pytest.approx([*line.x, *line.low, *line.high])


def test_wilsons_limits_hold_the_share_and_stay_between_0_and_1() -> None:
    assert wilson_limits(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson_limits(0.0, 10)[0] == 0.0
    assert wilson_limits(1.0, 10)[1] == 1.0
    low, high = wilson_limits(0.04, 1)  # a mean over seeds, of one example
    assert low <= 0.04 <= high
