"""The page that a silo writes for itself: its scores, its place among the others, what it sent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hospitals import hospitals, study_table
from html_pages import Page

from fedilc.evaluation.estimates import Floors
from fedilc.report.html.silo import silo_part, write_silo_page
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.settings import StudySettings
from fedilc.studies.study.site_scores import Told


@pytest.fixture(params=[1, 10])
def result(tmp_path: Path, request: pytest.FixtureRequest) -> StudyResult:
    settings = StudySettings(
        algorithms=("fedavg", "geometric"), references=False, seeds=1, subgroups=("sex",)
    )
    plan = StudyPlan(study_table(tmp_path, hospitals(4, rows=120)), settings)
    random = np.random.default_rng(0)
    outputs = {
        site: {name: [y[:, None] + random.normal(size=(len(y), 1)) - 0.5] for name in settings.algorithms}
        for site, y in plan.data.labels.items()
    }
    return StudyResult.of(plan, {}, outputs, {}, Floors(10, request.param))


def test_the_page_has_scores_place_curves_and_what_was_sent(result: StudyResult, tmp_path: Path) -> None:
    told = Told.model_validate_json(result.told_to("H1", "auroc").model_dump_json())
    document = result.sites["H1"]
    assert "H0" not in told.model_dump_json()
    write_silo_page(tmp_path / "silo.html", document, told, [("updates", 300, 123_456)])
    shown = Page((tmp_path / "silo.html").read_text())
    text = " ".join(shown.all("p", "td", "h1", "h2", "h3"))
    for heading in (
        "Scores at this site",
        "Place among the held-out sites",
        "Calibration",
        "Decision curves",
    ):
        assert heading in text
    for other in ("H0", "H2", "H3"):
        assert other not in text
    assert "123456" in text.replace(",", "")
    areas = sorted((result.estimate(site, "fedavg", "auroc").value for site in result.sites), reverse=True)
    rank = areas.index(document.methods["fedavg"].scores["auroc"].value) + 1
    [sentence] = silo_part(document, told).verdict
    assert sentence.startswith("At H1, fedavg had AUROC 0.")
    assert sentence.endswith(f"; this is place {rank} of 4 held-out sites.")


def test_a_site_without_a_score_says_why(tmp_path: Path) -> None:
    settings = StudySettings(algorithms=("fedavg",), references=False, seeds=1)
    plan = StudyPlan(study_table(tmp_path, hospitals(3, rows=12)), settings)
    outputs = {site: {"fedavg": [np.zeros((12, 1))]} for site in plan.data.silos}
    result = StudyResult.of(plan, {}, outputs, {}, Floors(10, 10))
    [sentence] = silo_part(result.sites["H0"], result.told_to("H0", "auroc")).verdict
    assert sentence == ("At H0, the AUROC of fedavg is not estimable (fewer than 10 examples of a class).")
