"""A study with floors does without second derivatives where silos would refuse them."""

from __future__ import annotations

from pathlib import Path

from remote_studies import HEART, TWELVE, write_hospitals, write_twelve

from fedilc.studies.study.data import study_data
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.safety import refusal, without_unsafe
from fedilc.studies.study.settings import StudySettings


def test_small_tables_are_studied_without_the_regression(tmp_path: Path) -> None:
    names = write_hospitals(tmp_path)
    plan = StudyPlan(study_data([str(tmp_path / f"{name}.csv") for name in names], **HEART), StudySettings())
    assert plan.regression == "logistic"
    smaller = without_unsafe(plan)
    assert smaller.regression is None
    assert smaller.algorithms == plan.settings.algorithms
    assert any("logistic is left out, because silo" in note for note in smaller.own_notes())


def test_large_cells_keep_the_regression(tmp_path: Path) -> None:
    names = write_twelve(tmp_path)
    data = study_data([str(tmp_path / f"{name}.csv") for name in names], **TWELVE)
    plan = StudyPlan(data, StudySettings())
    assert without_unsafe(plan) is plan


def test_one_sentence_names_the_first_silo_and_how_many_there_are() -> None:
    assert refusal("ridge", {"a": None}) is None
    found = refusal("ridge", {"a": "x", "b": "y"})
    assert found == (
        "ridge is left out, because silo 'a' has x (2 silos have such a reason, this is the first)"
    )
