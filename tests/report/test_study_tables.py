"""A study's tables: many sites go down the page, few across it; the best is bold."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hospitals import hospitals, study_table
from rich.console import Console

from fedilc.cli.study import show_study
from fedilc.evaluation.scores import SCORES
from fedilc.report.study_tables import study_tables, summary_tables
from fedilc.studies.study.plan import Choice, StudyPlan, StudySettings
from fedilc.studies.study.run import StudyResult
from fedilc.studies.study.tasks import ALONE, POOLED


def made(folder: Path, sites: int) -> StudyResult:
    """A study in which geometric is 0.1 above fedavg in every score, and H0 has no area."""
    data = study_table(folder, hospitals(sites, rows=8))
    plan = StudyPlan(data, StudySettings(algorithms=("fedavg", "geometric"), references=False))
    noise = np.append(0.0, np.random.default_rng(0).normal(0, 0.02, 50))
    scores = {
        site: {
            name: dict.fromkeys(SCORES["binary"], 0.7 + shift + 0.001 * n + noise)
            for name, shift in (("fedavg", 0.0), ("geometric", 0.1))
        }
        for n, site in enumerate(data.silos)
    }
    for methods in scores["H0"].values():
        methods["auroc"] = np.full(51, np.nan)
    choices = {site: dict.fromkeys(("fedavg", "geometric"), Choice({}, 7, 0.5, {7: 0.5})) for site in scores}
    return StudyResult(plan, choices, {}, scores, {}, {})


def test_few_sites_are_columns_and_many_are_rows(tmp_path: Path) -> None:
    few = {table.name: table for table in summary_tables(made(tmp_path, 4))}
    assert [column.title for column in few["score"].columns] == ["method", "H0", "H1", "H2", "H3", "mean"]
    assert [cell.text for cell in few["score"].rows[0]][:2] == ["fedavg", "-"]
    many = {table.name: table for table in summary_tables(made(tmp_path, 9))}
    assert [column.title for column in many["score"].columns] == ["site", "n", "fedavg", "geometric"]
    assert len(many["score"].rows) == 9


def test_the_best_of_each_score_is_bold_where_less_is_better_too_and_calibration_has_no_best(
    tmp_path: Path,
) -> None:
    means = next(table for table in study_tables(made(tmp_path, 4)) if table.name == "means")
    bold = {
        column.title: [row[0].text for row in means.rows if row[place].bold]
        for place, column in enumerate(means.columns)
    }
    assert bold["AUROC"] == ["geometric"]
    assert bold["log loss"] == ["fedavg"]
    assert bold["calibration slope"] == []


def test_differences_are_grouped_by_score_and_the_choices_say_how_they_were_made(tmp_path: Path) -> None:
    tables = {table.name: table for table in study_tables(made(tmp_path, 4))}
    scores = [name for name, _ in tables["comparisons"].groups()]
    assert scores == ["AUROC", "AUPRC", "log loss", "Brier score", "accuracy"]
    assert tables["comparisons"].rows[0][2].text.startswith("+0.100 [")
    assert "left out in turn" in tables["choices"].notes[0]
    assert tables["choices"].rows[0][2].text == "7"


@pytest.mark.parametrize(("sites", "name"), [(4, "H"), (4, "University Hospital "), (20, "Site ")])
def test_all_that_a_terminal_shows_fits_in_eighty_columns(tmp_path: Path, sites: int, name: str) -> None:
    frame = hospitals(sites, rows=10).with_columns(pl.col("hospital").str.replace("H", name))
    plan = StudyPlan(study_table(tmp_path, frame), StudySettings())
    random = np.random.default_rng(0)
    methods = (*plan.settings.algorithms, ALONE, POOLED)
    scores = {
        site: {method: {score: random.random(50) for score in SCORES["binary"]} for method in methods}
        for site in plan.data.silos
    }
    text = StringIO()
    show_study(Console(file=text, width=80), StudyResult(plan, {}, {}, scores, {}, {}))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text.getvalue()
    rows = [line.split()[0] for line in lines if line.startswith(" fishr-inter")]
    assert rows == ["fishr-inter-geo"] * len(rows)
    assert len(rows) >= 3  # the means, and two scores compared
