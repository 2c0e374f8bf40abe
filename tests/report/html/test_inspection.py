"""The part of the report on silos before training."""

from __future__ import annotations

from pathlib import Path

from hospitals import hospitals, study_table
from html_pages import Page

from fedilc.report.html.report import inspection_part, write_html_report
from fedilc.studies.inspection import inspect_tables, read_inspection, write_inspection


def test_an_inspection_alone_is_a_report_whose_verdict_is_its_suggestion(tmp_path: Path) -> None:
    inspection = inspect_tables("patients", study_table(tmp_path, hospitals(3)).tables)
    write_inspection(tmp_path / "shift", inspection)
    assert read_inspection(tmp_path / "shift") == inspection
    write_html_report(tmp_path / "report.html", [tmp_path / "shift"])
    found = Page((tmp_path / "report.html").read_text())
    assert found.all("section")[0] == f"Verdict {inspection.suggestion()}"
    assert "Share of missing cells" in found.all("caption")


def test_beside_a_study_its_verdict_and_notes_are_not_said_twice(tmp_path: Path) -> None:
    inspection = inspect_tables("patients", study_table(tmp_path, hospitals(3)).tables)
    assert inspection.notes
    alone, beside = (inspection_part(inspection, judged) for judged in (True, False))
    assert (len(alone.verdict), len(beside.verdict)) == (1, 0)
    assert "Notes on the tables" in dict(alone.sections)
    assert "Notes on the tables" not in dict(beside.sections)


def test_silos_go_across_or_down_whichever_are_fewer(tmp_path: Path) -> None:
    for sites, first in ((3, "column"), (9, "silo")):
        inspection = inspect_tables("patients", study_table(tmp_path, hospitals(sites, rows=8)).tables)
        section = Page(dict(inspection_part(inspection, True).sections)["How the silos' columns differ"])
        assert section.all("th")[0] == first
