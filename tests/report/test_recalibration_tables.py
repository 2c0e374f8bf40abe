"""The tables of a recalibration have what was fitted, the scores and the learning curve."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from fedilc.evaluation.recalibration import recalibrate
from fedilc.report.recalibration_tables import recalibration_tables


def test_tables_name_the_rows_and_leave_out_a_curve_that_is_not_there() -> None:
    random = np.random.default_rng(0)
    z = random.normal(size=80)
    y = (random.random(80) < expit(z - 1)).astype(float)
    found = recalibrate("binary", "slope", y, z[:, None], np.arange(80) // 2)
    fitted, scored = recalibration_tables({**found.facts, "learning_curve": []}, "fedavg")
    title = f"Recalibration of fedavg: slope fitted to 80 rows of 40 patients, {int(y.sum())} events"
    assert fitted.title == title
    assert [row[0].text for row in fitted.rows] == ["intercept", "slope"]
    assert "calibration slope†" in [row[0].text for row in scored.rows]
    assert not any("caution" in cell.text for row in scored.rows for cell in row)
    assert scored.notes[-1].startswith("† Caution: ")
