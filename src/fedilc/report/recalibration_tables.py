"""The tables of a recalibration, made from what run.json says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedilc.report.tables import TableData, words
from fedilc.training.model_card import caution_note, coefficient_rows, curve_rows, score_rows


def recalibration_tables(update: Mapping[str, Any], name: str = "") -> list[TableData]:
    """Return what was fitted, the scores before and after, and the learning curve if there is one."""
    of = f" of {name}" if name else ""
    rows = f"{update['rows']} rows"
    rows += f" of {update['patients']} patients" if "patients" in update else ""
    rows += f", {update['events']} events" if "events" in update else ""
    fitted = TableData.of(
        "recalibration",
        name,
        f"Recalibration{of}: {update['kind']} fitted to {rows}",
        words("coefficient", "value [95 % interval]"),
        coefficient_rows(update),
        ["Before, the slope is 1 and the intercept 0."],
    )
    caution = caution_note(update)
    scored = TableData.of(
        "recalibration-scores",
        name,
        f"Scores{of} at this site",
        words("score", "as it is", "recalibrated, cross-validated", "recalibrated, apparent"),
        score_rows(update),
        [
            f"Cross-validated in {update['folds']} folds of patients. Apparent: on the rows that it was "
            "fitted to, and too good.",
            *([caution] if caution else []),
        ],
    )
    head, points = curve_rows(update)
    curve = TableData.of(
        "learning-curve",
        name,
        f"Learning curve{of}: how many local patients it takes",
        (*words(*head[:3]), *head[3:]),
        points,
        [
            "Mean (standard deviation) over random draws of local patients, on those that were not drawn. "
            "A draw with too few events or non-events leaves the model as it is."
        ],
    )
    return [fitted, scored, *([curve] if points else [])]
