"""Scores at held-out sites: many sites go down the page, few across it; the best is bold."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import numpy as np
import polars as pl
from hospitals import compared_study, hospitals, made_result, study_table
from rich.console import Console

from fedilc.cli.study import show_study
from fedilc.report.study_files import study_facts
from fedilc.report.study_tables import study_tables, summary_tables
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.settings import StudySettings


def test_few_sites_are_columns_and_many_are_rows(tmp_path: Path) -> None:
    few = {table.name: table for table in summary_tables(compared_study(tmp_path, 4))}
    assert [column.title for column in few["score"].columns] == ["method", "H0", "H1", "H2", "H3", "mean"]
    assert [cell.text for cell in few["score"].rows[0]][:2] == ["fedavg", "not estimable"]
    many = {table.name: table for table in summary_tables(compared_study(tmp_path, 9))}
    assert [column.title for column in many["score"].columns] == ["site", "n", "fedavg", "geometric"]
    assert len(many["score"].rows) == 9


def test_the_best_of_each_score_is_bold_where_less_is_better_too_and_calibration_has_no_best(
    tmp_path: Path,
) -> None:
    means = next(table for table in study_tables(compared_study(tmp_path, 4)) if table.name == "means")
    bold = {
        column.title: [row[0].text for row in means.rows if row[place].bold]
        for place, column in enumerate(means.columns)
    }
    assert bold["AUROC"] == ["geometric"]
    assert bold["log loss"] == ["fedavg"]
    assert bold["calibration slope"] == []


def test_scores_that_rest_on_few_events_are_marked_and_the_means_say_over_how_many_sites_they_are(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(0)
    frame = hospitals(4, rows=60).with_columns(
        pl.when((pl.col("hospital") == "H3") & (pl.int_range(pl.len()).over("hospital") >= 8))
        .then(pl.lit("no"))
        .otherwise(pl.col("died"))
        .alias("died")
    )
    plan = StudyPlan(study_table(tmp_path, frame), StudySettings(algorithms=("fedavg", "geometric")))
    outputs = {
        site: {name: [random.normal(size=(60, 1))] for name in plan.settings.algorithms}
        for site in plan.data.silos
    }
    choices = made_result(plan, {"fedavg": 0.7, "geometric": 0.8}).choices
    study = study_facts(StudyResult.of(plan, choices, outputs, {}))
    shown = {table.name: table for table in summary_tables(study)}
    texts = [cell.text for cell in shown["score"].rows[0]]
    events = sum(plan.data.labels["H3"])
    assert re.fullmatch(r"0\.\d{3}† \[\.\d\d,\.\d\d\]", texts[1])
    assert texts[4] == "not estimable"
    assert f"Not estimable: AUROC at H3 ({events:.0f} events, fewer than 10)." in shown["score"].notes
    assert any(note.startswith("† Caution: AUROC at H0 (") for note in shown["score"].notes)
    assert any(note.startswith("Means over 3 of 4 sites, those") for note in shown["all-means"].notes)
    assert study["means"]["fedavg"]["auroc"]["sites"] == 3
    assert study["means"]["fedavg"]["log_loss"]["sites"] == 4
    text = StringIO()
    show_study(Console(file=text, width=80), study)
    assert "nan" not in text.getvalue().lower()
