"""The part of the report on a study: which sections it has, and what they are made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hospitals import hospitals, made_result, study_table
from html_pages import Page

from fedilc.errors import ConfigError
from fedilc.report.html.study import study_part
from fedilc.report.study_files import write_study
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.settings import StudySettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = study_table(tmp_path, hospitals(4, rows=30))
    plan = StudyPlan(data, StudySettings(algorithms=("fedavg", "geometric"), references=False))
    write_study(tmp_path, made_result(plan, {"fedavg": 0.7, "geometric": 0.8}))
    return tmp_path


def test_the_verdict_is_that_of_the_study_and_every_section_has_content(folder: Path) -> None:
    part = study_part(folder)
    assert part.title == "patients: study"
    assert part.verdict == tuple((folder / "verdict.txt").read_text().splitlines())
    assert [title for title, _ in part.sections] == [
        *("The next site", "All methods: mean over held-out sites", "Each held-out site"),
        *("Rows, sites and variables", "Compared with fedavg", "Curves"),
        *(
            "Calibration",
            "Predicted risks",
            "Decision curves",
            "Notes on the data",
            "Settings chosen on the training sites",
            "Settings and command",
        ),
    ]
    assert all(Page(body).elements for _, body in part.sections)


def test_the_tables_are_those_of_the_files(folder: Path) -> None:
    sections = dict(study_part(folder).sections)
    shown = Page(sections["Each held-out site"])
    written = (folder / "tables.md").read_text()
    assert shown.all("details")
    for cell in shown.all("strong"):
        assert f"**{cell.replace('[', chr(92) + '[').replace(']', chr(92) + ']')}**" in written
    assert "H0 (30 examples)" in shown.all("th")
    assert "verdict" in Page(sections["Compared with fedavg"]).all("th")


@pytest.mark.parametrize("sites", [4, 5])
def test_differences_end_with_the_mean_and_from_five_sites_on_with_the_next_one(
    folder: Path, sites: int
) -> None:
    facts = json.loads((folder / "study.json").read_text())
    for methods in facts["next_site_differences"].values():
        for found in methods.values():
            found |= {"sites": sites, "mean": 0.01, "low": -0.02, "high": 0.04}
    (folder / "study.json").write_text(json.dumps(facts))
    shown = dict(study_part(folder).sections)["Compared with fedavg"]
    assert ">mean over sites<" in shown
    assert (">next site<" in shown) == (sites == 5)


def test_every_chart_is_made_from_study_json_alone(folder: Path) -> None:
    (folder / "predictions.parquet").unlink()
    assert {"Calibration", "Predicted risks", "Decision curves"} <= dict(study_part(folder).sections).keys()


def test_a_study_of_another_version_is_one_sentence(folder: Path) -> None:
    facts = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(facts | {"format": 99}))
    with pytest.raises(
        ConfigError, match=r"study.json is damaged or of another version \(its format is 99\)"
    ):
        study_part(folder)
