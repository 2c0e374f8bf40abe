"""Subgroups: by which columns, what becomes of missing values, and the scores in each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hospitals import hospitals, made_result
from sklearn.metrics import brier_score_loss, roc_auc_score
from slow_clinical import paired_area

from fedilc.data import Federation, Silo
from fedilc.errors import ConfigError
from fedilc.report.checklist import checklist
from fedilc.report.clinical_tables import subgroup_tables
from fedilc.report.html.study import study_part
from fedilc.report.study_files import write_study
from fedilc.studies.study.assessment import assessment
from fedilc.studies.study.data import StudyArrays, StudyTables, study_data
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.settings import StudySettings
from fedilc.studies.study.subgroups import subgroup_levels

FRAME = hospitals(4, rows=150)


def patients(folder: Path, **options: object) -> StudyTables:
    FRAME.write_csv(folder / "patients.csv")
    found = study_data([str(folder / "patients.csv")], label="died", silo_column="hospital", **options)
    assert isinstance(found, StudyTables)
    return found


def result(data: StudyTables, *subgroups: str) -> StudyResult:
    settings = StudySettings(algorithms=("fedavg",), references=False, subgroups=subgroups)
    plan = StudyPlan(data, settings)
    random = np.random.default_rng(0)
    outputs = {
        site: {"fedavg": [y[:, None] + random.normal(size=(len(y), 1)) - 0.5]}
        for site, y in data.labels.items()
    }
    return StudyResult.of(plan, made_result(plan, {"fedavg": 0.7}).choices, outputs, {})


def test_a_column_of_names_has_its_names_even_if_it_is_dropped(tmp_path: Path) -> None:
    for options in ({}, {"drop": ["sex"]}, {"columns": ["age"]}):
        levels = subgroup_levels(patients(tmp_path, **options), "sex")
        assert list(levels) == ["H0", "H1", "H2", "H3"]
        expected = [f"sex = {one}" for one in FRAME.filter(hospital="H2")["sex"]]
        assert levels["H2"].tolist() == expected


def test_a_comparison_divides_and_missing_values_are_a_level(tmp_path: Path) -> None:
    ages = FRAME.filter(hospital="H1")["age"].cast(pl.Float64, strict=False).to_list()
    levels = subgroup_levels(patients(tmp_path), "age>=65")
    names = {None: "age missing", True: "age >= 65", False: "age < 65"}
    assert levels["H1"].tolist() == [names[None if age is None else age >= 65] for age in ages]
    at_median = subgroup_levels(patients(tmp_path), "age")
    known = FRAME["age"].cast(pl.Float64, strict=False).drop_nulls()
    assert set(at_median["H1"].tolist()) == {
        f"age >= {np.median(known):g}",
        f"age < {np.median(known):g}",
        "age missing",
    }


def test_scores_are_those_of_the_rows(tmp_path: Path) -> None:
    found = result(patients(tmp_path), "sex")
    assessed = json.loads(json.dumps(assessment(found), allow_nan=False))
    facts = [*assessed["together"]["subgroups"], *assessed["subgroups"]]
    assert [one["place"] for one in facts[:2]] == ["all held-out sites"] * 2
    men = (FRAME["sex"] == "m").to_numpy()
    y = np.concatenate(list(found.plan.data.labels.values()))
    outputs = np.concatenate([of["fedavg"][0][:, 0] for of in found.outputs.values()])
    one = next(one for one in facts if one["level"] == "sex = m")
    assert (one["examples"], one["events"]) == (men.sum(), y[men].sum())
    scores = one["methods"]["fedavg"]
    sites = [
        (of == "m").to_numpy() for of in (FRAME.filter(hospital=name)["sex"] for name in found.plan.held_out)
    ]
    parts = [
        (
            found.plan.data.labels[site][own].astype(int).tolist(),
            found.outputs[site]["fedavg"][0][own, 0].tolist(),
        )
        for site, own in zip(found.plan.held_out, sites, strict=True)
    ]
    assert scores["auroc"]["value"] == pytest.approx(paired_area(parts))
    own = next(one for one in facts if (one["level"], one["place"]) == ("sex = m", "H2"))
    assert own["methods"]["fedavg"]["auroc"]["value"] == pytest.approx(roc_auc_score(*parts[2]))
    assert scores["brier"]["value"] == pytest.approx(
        brier_score_loss(y[men], 1 / (1 + np.exp(-outputs[men])))
    )
    for site in found.plan.held_out:
        sizes = [one["examples"] for one in facts if one["place"] == site]
        assert sum(sizes) == 150


def test_report_tables_and_checklist_have_them(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", result(patients(tmp_path), "sex", "age>=65"))
    first, second = subgroup_tables(study)
    men = int((FRAME["sex"] == "m").sum())
    assert any(row[0].text.startswith(f"sex = m ({men} examples, ") for row in first.rows)
    assert any(row[0].text.startswith("H3: age >= 65 (") for row in second.rows)
    assert "Subgroups" in dict(study_part(tmp_path / "study").sections)
    assert "| 14 | fairness | Subgroups |" in checklist(study)
    assert {"subgroups.csv", "subgroups-by-site.csv"} <= {
        path.name for path in (tmp_path / "study" / "tables").iterdir()
    }


def test_too_few_events_are_not_estimable(tmp_path: Path) -> None:
    found = assessment(result(patients(tmp_path), "age>=95"))["together"]["subgroups"]
    few = next(one for one in found if one["level"] == "age >= 95")
    assert few["methods"]["fedavg"]["auroc"]["value"] is None
    assert (
        few["methods"]["fedavg"]["auroc"]["reason"]
        == "no pairs of an event and a non-event that one model predicts"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [("sx", r"names the column 'sx', which no file has; did you mean 'sex'"), ("patient", "different names")],
)
def test_a_wrong_column_is_refused_before_training(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        StudyPlan(patients(tmp_path), StudySettings(subgroups=(text,)))


def test_pictures_have_no_subgroups() -> None:
    silos = [Silo(name, torch.zeros(6, 1, 8, 8), [0, 1] * 3) for name in "abc"]
    data = StudyArrays.of(Federation("pictures", silos))
    with pytest.raises(ConfigError, match="`subgroups` is for tables, and pictures holds none; leave it out"):
        StudyPlan(data, StudySettings(subgroups=("sex",)))


def test_a_data_set_keeps_dropped_columns_for_subgroups() -> None:
    data = study_data(["heart-disease"], drop=["sex"])
    levels = subgroup_levels(data, "sex")
    assert sum(map(len, levels.values())) == 920
    assert "sex" not in data.tables.fit(list(data.silos)).columns
