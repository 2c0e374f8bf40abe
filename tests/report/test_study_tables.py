"""A study's other tables: differences, choices, the next site, and what fits in a terminal."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hospitals import compared_study, hospitals, made_result, study_table
from rich.console import Console

from fedilc.cli.study import show_study
from fedilc.evaluation.next_site import random_effects
from fedilc.report.study_files import study_facts
from fedilc.report.study_tables import next_site_notes, study_tables, summary_tables
from fedilc.studies.study.comparators import ALONE, POOLED
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.settings import StudySettings


def test_differences_are_grouped_by_score_and_the_choices_say_how_they_were_compared_study(
    tmp_path: Path,
) -> None:
    study = compared_study(tmp_path, 4)
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


def test_equal_predictions_give_no_interval_for_a_difference_at_the_next_site(tmp_path: Path) -> None:
    study = compared_study(tmp_path, 4)
    found = {"sites": 6, "next_low": -0.1, "next_high": 0.1}
    study["against"]["auroc"] = {
        "null": found | {"value": 0.1, "low": 0.0, "high": 0.2},
        "fedavg": found | {"value": 0.0, "low": None, "high": None},
    }
    table = next(
        table
        for table in study_tables({**study, "headline": "geometric", "methods": ["fedavg", "null"]})
        if table.name == "against"
    )
    shown = {row[1].text: [cell.text for cell in row[3:]] for row in table.rows if row[0].text == "AUROC"}
    assert shown == {"fedavg": ["+0.000", "-"], "null": ["+0.100 [+0.000,+0.200]", "-0.100 to +0.100"]}


def test_the_note_on_coverage_is_what_the_simulations_found() -> None:
    path = Path(__file__).parents[2] / "results" / "coverage" / "next-site-overlap.csv"
    rows = pl.read_csv(path).filter(
        pl.col("tau") == "prior", pl.col("of") == "AUROC", pl.col("interval") == "headline"
    )
    few, eight, twenty = (
        [f"{100 * end:.0f}" for end in (of.min(), of.max())]
        for of in (rows.filter(pl.col("sites").is_in(k))["coverage"] for k in ([3, 4], [8], [20]))
    )
    about = {"headline": "Jeffreys", "tau": 0.3, "mean": 0.8, "i2": 0.5}
    said = (
        f"held {few[0]} to {few[1]} % of next sites with 3 or 4 sites, {eight[0]} to {eight[1]} % with 8, "
        f"and {twenty[0]} to {twenty[1]} % with 20"
    )
    for metric in ("auroc", "log_loss"):
        study = {"deciding_metric": metric, "next_site": {"chosen": {metric: about}}}
        assert any(said in note for note in next_site_notes(study, "chosen")) == (metric == "auroc")


def test_a_study_of_before_the_correction_for_shared_training_sites_shows_differences_without_p(
    tmp_path: Path,
) -> None:
    study = compared_study(tmp_path, 4)
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
