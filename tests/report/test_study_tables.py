"""A study's tables: many sites go down the page, few across it; the best is bold."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hospitals import hospitals, made_result, study_table
from rich.console import Console

from fedilc.cli.study import show_study
from fedilc.evaluation.estimates import Estimate
from fedilc.evaluation.next_site import random_effects
from fedilc.report.study_files import study_facts
from fedilc.report.study_tables import Study, study_tables, summary_tables
from fedilc.studies.study.comparators import ALONE, POOLED
from fedilc.studies.study.plan import StudyPlan, StudySettings
from fedilc.studies.study.result import StudyResult


def made(folder: Path, sites: int) -> Study:
    """A study in which geometric is 0.1 above fedavg in every score, and H0 has no area."""
    data = study_table(folder, hospitals(sites, rows=8))
    plan = StudyPlan(data, StudySettings(algorithms=("fedavg", "geometric"), references=False))
    result = made_result(plan, {"fedavg": 0.7, "geometric": 0.8})
    for methods in result.scores["H0"].values():
        methods["auroc"] = Estimate(np.nan, np.zeros(0))
    return study_facts(result)


def test_few_sites_are_columns_and_many_are_rows(tmp_path: Path) -> None:
    few = {table.name: table for table in summary_tables(made(tmp_path, 4))}
    assert [column.title for column in few["score"].columns] == ["method", "H0", "H1", "H2", "H3", "mean"]
    assert [cell.text for cell in few["score"].rows[0]][:2] == ["fedavg", "not estimable"]
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


def test_differences_are_grouped_by_score_and_the_choices_say_how_they_were_made(tmp_path: Path) -> None:
    study = made(tmp_path, 4)
    found = study["comparisons"]["auroc"]["geometric"]
    found |= {"over_sites": {"value": 0.1, "low": -0.01, "high": 0.21}, "p": 0.03, "corrected_p": 0.06}
    tables = {table.name: table for table in study_tables(study)}
    scores = [name for name, _ in tables["comparisons"].groups()]
    assert scores == [
        *("AUROC", "AUPRC", "log loss", "log loss, intercept refitted", "Brier score", "accuracy"),
    ]
    assert [cell.text for cell in tables["comparisons"].rows[0][2:5]] == [
        *("+0.100 [-0.010,+0.210]", ".030", ".060")
    ]
    assert all(row[3].text == row[4].text == "-" for row in tables["comparisons"].rows[1:])
    assert "left out in turn" in tables["choices"].notes[0]
    assert tables["choices"].rows[0][2].text == "7"


def test_a_study_of_before_the_correction_for_shared_training_sites_shows_differences_without_p(
    tmp_path: Path,
) -> None:
    study = made(tmp_path, 4)
    for methods in study["comparisons"].values():
        for found in methods.values():
            del found["over_sites"], found["p"]
            found |= {"t_p": 0.001, "corrected_p": 0.001, "flip_p": 0.125, "verdict": "better"}
            found |= {"detectable": 0.01, "detectable_here": 0.01}
    table = next(table for table in study_tables(study) if table.name == "comparisons")
    assert [cell.text for cell in table.rows[0][2:]] == ["+0.100", "-", "-", "not tested"]


@pytest.mark.parametrize(("sites", "name"), [(4, "H"), (4, "University Hospital "), (20, "Site ")])
def test_all_that_a_terminal_shows_fits_in_eighty_columns(tmp_path: Path, sites: int, name: str) -> None:
    frame = hospitals(sites, rows=40).with_columns(pl.col("hospital").str.replace("H", name))
    plan = StudyPlan(study_table(tmp_path, frame), StudySettings())
    levels = {
        name: 0.5 + 0.01 * place for place, name in enumerate((*plan.settings.algorithms, ALONE, POOLED))
    }
    text = StringIO()
    show_study(Console(file=text, width=80), study_facts(made_result(plan, levels)))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in text.getvalue()
    rows = [line.split()[0] for line in lines if line.startswith(" fishr-inter")]
    assert rows == ["fishr-inter-geo"] * len(rows)
    assert len(rows) >= 3  # the means, and two scores compared


def test_the_forest_plot_ends_with_the_next_site(tmp_path: Path) -> None:
    plan = StudyPlan(
        study_table(tmp_path, hospitals(6, rows=60)), StudySettings(algorithms=("fedavg", "geometric"))
    )
    random = np.random.default_rng(0)
    outputs = {
        site: {name: [random.normal(size=(60, 1)) + y[:, None]] for name in plan.settings.algorithms}
        for site, y in plan.data.labels.items()
    }
    choices = made_result(plan, {"fedavg": 0.7, "geometric": 0.8}).choices
    study = study_facts(StudyResult.of(plan, choices, outputs, {}))
    shown = {table.name: table for table in (*summary_tables(study), *study_tables(study))}
    rows = shown["forest"].rows
    assert [row[0].text for row in rows] == [
        *(f"H{site}" for site in range(6)),
        *("mean of such sites", "next site, empirical prior", "next site, by REML", "next site"),
    ]
    found = study["next_site"]["fedavg"]["auroc"]
    assert rows[-1][2].text == f"{found['mean']:.3f} [{found['low']:.3f},{found['high']:.3f}]"
    assert rows[-1][1].text.count("●") == 1
    texts = [[cell.text for cell in row] for row in shown["next-site"].rows]
    assert texts[0][:3] == ["chosen", "AUROC", "6"]
    assert ["geometric minus fedavg", "AUROC", "6"] in [row[:3] for row in texts]
    assert ["fedavg", "observed to expected events", "6"] in [row[:3] for row in texts]
    kept = study["estimates"]["fedavg"]["auroc"]
    assert found["tau"] == random_effects(*zip(*(one.values() for one in kept.values()), strict=True)).tau
