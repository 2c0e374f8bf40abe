"""`fedilc report -o report.html`: studies, inspections and runs in one file that needs no other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedilc.errors import ConfigError, writing
from fedilc.report.html.page import Part, make_part, page
from fedilc.report.html.runs import runs_part
from fedilc.report.html.study import study_part
from fedilc.report.inspection_report import inspection_tables, shift_shares
from fedilc.report.run_tables import run_groups
from fedilc.report.study_files import FILE as STUDY
from fedilc.storage.files import write_atomically
from fedilc.storage.run_folder import SUMMARIES
from fedilc.studies.inspection import FILE as INSPECTION
from fedilc.studies.inspection import Inspection, inspect_run, read_inspection

_MAX_TINT = 35  # per cent of the colour, so that the text keeps its contrast


def write_html_report(path: Path, folders: Sequence[Path]) -> None:
    """Write the report on the studies, inspections and runs in these folders, studies first."""
    studies, inspections, runs = (
        list(dict.fromkeys(file.parent for folder in folders for file in sorted(folder.rglob(name))))
        for name in (STUDY, INSPECTION, "run.json")
    )
    groups = run_groups(runs)
    inspected = [read_inspection(folder) for folder in inspections]
    inspected += [inspect_run(folder) for folder in runs if (folder / SUMMARIES).exists()]
    parts: list[Part] = [
        *(study_part(folder) for folder in studies),
        *(inspection_part(found, judged=not studies) for found in inspected),
        *(runs_part(group) for group in groups),
    ]
    if not parts:
        raise ConfigError(
            f"there is nothing to report in {', '.join(map(str, folders))}; give the folder of a study "
            "(study.json), of an inspection (inspection.json), or of runs with a completed round (run.json)"
        )
    title = "Report: " + ", ".join(dict.fromkeys(part.name for part in parts))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page(title, parts).encode())


class Cell(NamedTuple):
    """The text of a shaded cell, how much of its colour it has in per cent, and which colour if any."""

    shown: str
    tint: int = 0
    kind: str = ""


def inspection_part(found: Inspection, judged: bool) -> Part:
    """Return the part on an inspection; `judged` is whether the verdict and the notes are its own."""
    return make_part(
        "inspection.html.jinja",
        found.name,
        "silos before training",
        (found.suggestion(),) if judged else (),
        tables=inspection_tables(found),
        suggestion=found.suggestion(),
        notes=found.notes if judged else (),
        **(_pictures(found) if len(found.silos) > 1 else {"shifts": None}),
    )


def _pictures(found: Inspection) -> dict[str, Any]:
    """Return how far columns are from the other silos, and the shares of missing cells if there are any."""
    names, means, missing = shift_shares(found)
    silos = [silo.silo for silo in found.silos]
    numbers = [column.name for column in found.silos[0].columns if column.is_number]
    shifts = [[_shift(value, name in numbers) for name, value in zip(names, of, strict=True)] for of in means]
    shares = [[_cell(f"{value:.0%}", value, "below") for value in of] for of in missing]
    return {
        "shifts": _shaded(silos, names, shifts),
        "missing": _shaded(silos, names, shares) if any(map(any, missing)) else None,
    }


def _shaded(silos: list[str], columns: list[str], cells: list[list[Cell]]) -> dict[str, Any]:
    """Return headings and rows of a table: a row per column, or per silo if there are more of them."""
    if len(silos) > len(columns):
        return {"head": ["silo", *columns], "rows": list(zip(silos, cells, strict=True))}
    return {
        "head": ["column", *silos],
        "rows": list(zip(columns, zip(*cells, strict=True), strict=True)),
    }


def _shift(value: float, is_number: bool) -> Cell:
    if math.isnan(value):
        return Cell("-")
    if not is_number:
        return _cell(f"{value:.2f}", value, "apart")
    return _cell(f"{value:+.2f}", value, "above" if value > 0 else "below")


def _cell(shown: str, value: float, kind: str) -> Cell:
    return Cell(shown, round(_MAX_TINT * min(1.0, abs(value))), kind)
