"""`fedilc report -o report.html`: studies, inspections and runs in one file that needs no other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedilc.errors import ConfigError, writing
from fedilc.federation.run_folder import SUMMARIES
from fedilc.federation.tensor_files import write_atomically
from fedilc.report.html.inspection import inspection_part
from fedilc.report.html.page import Part, page
from fedilc.report.html.runs import runs_part
from fedilc.report.html.study import study_part
from fedilc.report.run_groups import run_groups
from fedilc.report.study_files import FILE as STUDY
from fedilc.studies.inspection import FILE as INSPECTION
from fedilc.studies.inspection import inspect_run, read_inspection


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
    title = "Report: " + ", ".join(dict.fromkeys(part.title.partition(": ")[0] for part in parts))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page(title, parts).encode())
