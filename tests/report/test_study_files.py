"""The files of a study: what is written is what was found, and is read back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hospitals import NO_SCORE, hospitals, made_result, study_table, with_score

from fedilc.data import Federation, Silo
from fedilc.errors import ConfigError
from fedilc.evaluation.estimates import Floors
from fedilc.report.study_files import predictions, read_study, study_facts, write_study
from fedilc.studies.study.choice import Choice
from fedilc.studies.study.data import StudyArrays
from fedilc.studies.study.declaration import declaration
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult, chosen_methods
from fedilc.studies.study.settings import StudySettings
from fedilc.studies.study.site_scores import SiteScores


def found(folder: Path) -> StudyResult:
    data = study_table(folder, hospitals(4, rows=20))
    plan = StudyPlan(data, StudySettings(algorithms=("fedavg", "geometric"), references=False))
    return made_result(plan, {"fedavg": 0.7, "geometric": 0.8})


def test_what_is_written_is_returned_and_read_back(tmp_path: Path) -> None:
    study = write_study(tmp_path / "new", found(tmp_path))
    assert read_study(tmp_path / "new") == json.loads(json.dumps(study))
    assert (tmp_path / "new" / "verdict.txt").read_text().splitlines() == [
        *study["verdict"],
        declaration(None),
    ]
    names = {path.stem for path in (tmp_path / "new" / "tables").iterdir()}
    clinical = {"calibration", "net-benefit", "flow", "development", "variables"}
    clinical.add("development-against-held-out")
    assert names == {"sites", "next-site", "means", "by-site", "comparisons", "choices"} | clinical
    assert study["silos"]["H0"]["examples"] == 20
    assert sum(study["silos"]["H0"]["classes"].values()) == 20
    assert "calibration_slope" not in study["comparisons"]


def test_a_score_that_is_not_estimable_is_null_with_the_reason(tmp_path: Path) -> None:
    result = with_score(found(tmp_path), "H1", "fedavg", "auroc", NO_SCORE)
    facts = json.loads(json.dumps(study_facts(result), allow_nan=False))
    assert facts["sites"]["H1"]["fedavg"]["auroc"] == {
        "value": None,
        "low": None,
        "high": None,
        "reason": "6 events, fewer than 10",
        "caution": None,
        "seeds": [None],
    }


def test_a_method_that_was_taken_somewhere_has_no_difference_at_the_next_site(tmp_path: Path) -> None:
    """The difference is 0 where it was taken, without variance: random effects would call that knowledge."""
    data = study_table(tmp_path, hospitals(6, rows=60))
    plan = StudyPlan(data, StudySettings(algorithms=("fedavg", "geometric")))
    made = made_result(
        plan, {"fedavg": 0.7, "geometric": 0.8, "logistic": 0.75, "pooled logistic": 0.75, "null": 0.5}
    )
    losses = {"fedavg": 0.5, "geometric": 0.4, "logistic": 0.45}
    choices = {
        site: {
            method: Choice({}, 1, loss + 0.2 * (method == "geometric" and site == "H0"), {1: loss}, {})
            for method, loss in losses.items()
        }
        for site in plan.held_out
    }
    result = StudyResult.of(plan, choices, made.outputs, {})
    assert result.chosen == {"H0": "logistic"} | {f"H{n}": "geometric" for n in range(1, 6)}
    against = study_facts(result)["against"]["log_loss"]
    assert {method for method, one in against.items() if one["next_low"] is None} == {
        *("geometric", "logistic", "pooled logistic"),
    }
    assert all(one["low"] is not None for one in against.values())


def test_predictions_have_a_row_per_example_method_and_seed_and_a_column_per_class(tmp_path: Path) -> None:
    made = found(tmp_path)
    frame = predictions(made.plan.data, made.outputs).collect()
    assert frame.columns == ["site", "method", "seed", "row", "label", "output"]
    assert len(frame) == 4 * 2 * 20
    assert frame.filter(site="H2", method="geometric")["output"].unique().to_list() == [0.8]
    silos = [Silo(name, torch.zeros(6, 2), [0, 1, 2, 0, 1, 2]) for name in "abc"]
    data = StudyArrays.of(Federation("three", silos, loss="multiclass"))
    plan = StudyPlan(data, StudySettings(algorithms=("fedavg",), references=False))
    other = made_result(plan, {"fedavg": 0.5})
    classes = predictions(plan.data, other.outputs).collect()
    assert classes.columns[-3:] == ["output 0", "output 1", "output 2"]
    assert classes.schema["output 0"] == pl.Float64


@pytest.mark.parametrize("least", [1, 10])
def test_a_study_from_documents_alone_is_that_of_the_rows(tmp_path: Path, least: int) -> None:
    plan = StudyPlan(
        study_table(tmp_path, hospitals(5, rows=60)),
        StudySettings(algorithms=("fedavg", "geometric"), seeds=2, subgroups=("sex",)),
    )
    random = np.random.default_rng(0)
    outputs = {
        site: {
            name: [random.normal(size=(60, 1)) + y[:, None] for _ in range(2)]
            for name in ("fedavg", "geometric", "logistic", "pooled logistic", "null")
        }
        for site, y in plan.data.labels.items()
    }
    losses = {"fedavg": 0.5, "geometric": 0.4, "logistic": 0.45}
    choices = {
        site: {name: Choice({}, 1, loss, {1: loss}, {}) for name, loss in losses.items()} for site in outputs
    }
    here = StudyResult.of(plan, choices, outputs, {}, Floors(10, least))
    documents = {site: SiteScores.read(one.to_bytes()) for site, one in here.sites.items()}
    there = StudyResult(plan, choices, documents, {}, chosen_methods(plan, choices, outputs))
    one, other = (json.loads(json.dumps(study_facts(result))) for result in (here, there))
    assert set(one.pop("together")) == {"subgroups", "drawn", "calibration", "net_benefit"}
    assert "rows in one place" in other.pop("together")["reason"]
    assert one == other
    write_study(tmp_path / "study", there)
    assert not (tmp_path / "study" / "predictions.parquet").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', "[" * 100_000])
def test_a_damaged_study_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(
        ConfigError, match=r"study.json is damaged or of another version .* run the study again"
    ):
        read_study(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file cannot be written: "):
        write_study(tmp_path / "file", found(tmp_path))
