"""The tables that reviewers of prediction models ask for, made from the content of study.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedilc.report.study_tables import Study, score_cell
from fedilc.report.tables import Cell, Column, TableData, words
from fedilc.studies.study.assessment import TREAT_ALL


def clinical_tables(study: Study) -> list[TableData]:
    """Return all of them that a study has; one that was written by an older version has none."""
    return [*calibration_table(study), *net_benefit_table(study), *edges_table(study)]


def calibration_table(study: Study) -> list[TableData]:
    """Return O:E and ICI per held-out site and method."""
    rows = [
        (place, method, score_cell(found["oe_ratio"]), _value_cell(found["ici"]))
        for place, methods in study.get("calibration", {}).items()
        for method, found in methods.items()
    ]
    columns = (
        *words("site", "method"),
        Column("O:E [95 %]", ("oe_ratio", "low", "high")),
        Column("ICI", ("ici",)),
    )
    notes = (
        "Means over seeds; 95 % intervals over examples.",
        "O:E: observed over expected events; above 1, risks are too low. ICI: mean distance between the "
        "predicted risks and the smooth calibration curve; 0 is ideal, and chance alone makes it larger at "
        "small sites.",
        "All sites together: as if they were one site, so that the interval leaves out how sites differ.",
    )
    title = "Calibration: observed to expected events, and integrated calibration index"
    return _table("calibration", study, title, columns, rows, notes)


def net_benefit_table(study: Study) -> list[TableData]:
    """Return the net benefit at the thresholds, per held-out site and method."""
    found = study.get("net_benefit", {"thresholds": [], "sites": {}})
    rows = [
        (place, method, *map(score_cell, of))
        for place, methods in found["sites"].items()
        for method, of in methods.items()
    ]
    ends = ("value", "low", "high")
    at = (Column(f"at {p:g}", tuple(f"{end}_{p:g}" for end in ends)) for p in found["thresholds"])
    columns = (*words("site", "method"), *at)
    notes = (
        "Means over seeds; 95 % intervals over examples.",
        "Net benefit at a threshold p: TP/n - FP/n p/(1-p). Treating nobody has 0. A method is useful at a "
        f"threshold if its net benefit is above 0 and above that of {TREAT_ALL!r}.",
    )
    return _table("net-benefit", study, "Net benefit by threshold", columns, rows, notes)


def edges_table(study: Study) -> list[TableData]:
    """Return the settings that were chosen at the edge of what was offered."""
    rows = [
        (
            *(one[name] for name in ("method", "setting", "edge")),
            f"{one['value']:g}",
            Cell(f"{one['sites']} of {one['of']}", parts=(str(one["sites"]), str(one["of"]))),
        )
        for one in study.get("edges", [])
    ]
    columns = (*words("method", "setting", "edge"), "value", Column("sites", ("sites", "of")))
    notes = ("The best value may lie beyond an edge at which most sites are: offer more values there.",)
    return _table("edges", study, "Choices at the edge of what was offered", columns, rows, notes)


def _value_cell(found: Mapping[str, Any]) -> Cell:
    """Return a score that has no limits, in one column of CSV."""
    cell = score_cell(found)
    return replace(cell, parts=cell.parts[:1])


def _table(
    name: str,
    study: Study,
    title: str,
    columns: tuple[object, ...],
    rows: Sequence[tuple[object, ...]],
    notes: tuple[str, ...],
) -> list[TableData]:
    return [TableData.of(name, study["name"], title, columns, rows, notes, grouped=True)] if rows else []
