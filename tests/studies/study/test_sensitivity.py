"""A study without indicators of missing values: what models see, and what is compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hospitals import ONE_CANDIDATE, hospitals, made_result, study_table

from fedilc.data import Federation, Silo
from fedilc.errors import ConfigError
from fedilc.report.checklist import checklist
from fedilc.report.html.study import study_part
from fedilc.report.study_files import study_facts, write_study
from fedilc.studies.study.data import StudyArrays
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.run import run_study
from fedilc.studies.study.sensitivity import run_without_indicators
from fedilc.studies.study.settings import StudySettings

SETTINGS = StudySettings(
    algorithms=("fedavg",),
    references=False,
    sensitivity=True,
    seeds=1,
    rounds=2,
    learning_rates=(0.01,),
    local_learning_rates=(0.1,),
    **ONE_CANDIDATE,
)


def test_inputs_are_the_same_without_their_indicators(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(4, rows=40))
    training = ["H0", "H1", "H2"]
    names = data.tables.fit(training).columns
    kept = [place for place, name in enumerate(names) if not name.endswith(" missing")]
    assert len(kept) < len(names)
    other = data.without_indicators()
    torch.testing.assert_close(other.inputs(training, "H3"), data.inputs(training, "H3")[:, kept])
    rows = np.arange(30)
    assert other.inputs_by_rows("H3", rows).shape[1] < data.inputs_by_rows("H3", rows).shape[1]
    assert data.has_indicators
    assert not other.has_indicators
    assert not set(data.fingerprints.values()) & set(other.fingerprints.values())


def test_the_runs_are_those_of_a_study_of_such_tables_and_are_kept(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(4, rows=40))
    plan = StudyPlan(data, SETTINGS)
    result = run_study(plan, tmp_path)
    before = len(list((tmp_path / "runs").iterdir()))
    without = run_without_indicators(result, tmp_path)
    assert without is not None
    assert len(list((tmp_path / "runs").iterdir())) == 2 * before
    alone = run_study(
        StudyPlan(data.without_indicators(), replace(SETTINGS, sensitivity=False)), tmp_path / "alone"
    )
    study = json.loads(json.dumps(study_facts(result, None, without), allow_nan=False))
    found = study["sensitivity"]["methods"]["fedavg"]["log_loss"]
    assert found["with"]["value"] == pytest.approx(result.mean("fedavg", "log_loss").value)
    assert found["without"]["value"] == pytest.approx(alone.mean("fedavg", "log_loss").value)
    change = found["without"]["value"] - found["with"]["value"]
    assert found["difference"]["value"] == pytest.approx(change)
    assert found["difference"]["low"] <= change <= found["difference"]["high"]
    write_study(tmp_path / "study", result, None, without)
    assert "Without indicators of missing values" in dict(study_part(tmp_path / "study").sections)
    assert "Without indicators of missing values |" in checklist(study)


def test_tables_without_missing_values_say_that_there_is_nothing_to_leave_out(tmp_path: Path) -> None:
    whole = hospitals(4, rows=40).with_columns(
        pl.lit(60.0).alias("age") + pl.int_range(pl.len()), lactate=pl.int_range(pl.len()) % 7 + 1
    )
    plan = StudyPlan(study_table(tmp_path, whole), SETTINGS)
    result = made_result(plan, {"fedavg": 0.7})
    assert run_without_indicators(result, tmp_path) is None
    write_study(tmp_path / "study", result)
    body = dict(study_part(tmp_path / "study").sections)["Without indicators of missing values"]
    assert "Not done: no column has missing values" in body


def test_pictures_have_no_indicators() -> None:
    silos = [Silo(name, torch.zeros(6, 1, 8, 8), [0, 1] * 3) for name in "abc"]
    with pytest.raises(
        ConfigError, match="`sensitivity` is for tables, and pictures holds none; leave it out"
    ):
        StudyPlan(StudyArrays.of(Federation("pictures", silos)), SETTINGS)
