"""The runs of a study: named for all that they depend on, and kept whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hospitals import hospitals, study_table

from fedilc.errors import FedILCWarning
from fedilc.storage.files import read_tensors
from fedilc.studies.study.comparators import POOLED
from fedilc.studies.study.data import StudyTables
from fedilc.studies.study.tasks import (
    AloneTask,
    RunTask,
    TaskJob,
    choosing_rows,
    name_of,
    perform_all,
    stacks_of,
)

RUN = RunTask("fedsgd", {"rounds": 2, "learning_rate": 0.1}, ("H0", "H1"), (4,), 0, predicted="H2")
ALONE = AloneTask("H0", 1, 4, (0.1,), 2, 1, (4,), (0, 1))


@pytest.fixture
def data(tmp_path: Path) -> StudyTables:
    return study_table(tmp_path, hospitals(3, rows=20))


def test_whatever_a_run_depends_on_gives_it_another_file(data: StudyTables, tmp_path: Path) -> None:
    others = [
        replace(RUN, algorithm=POOLED),
        replace(RUN, options={"rounds": 3, "learning_rate": 0.1}),
        replace(RUN, training=("H0",)),
        replace(RUN, hidden=(5,)),
        replace(RUN, seed=1),
        replace(RUN, predicted=None),
        replace(RUN, rows=10),
        ALONE,
        replace(ALONE, fold=2),
    ]
    assert len({name_of(task.identity(data)) for task in (RUN, *others)}) == 1 + len(others)


def test_the_labels_of_the_silo_to_predict_are_no_part_of_it_but_its_features_are(
    data: StudyTables, tmp_path: Path
) -> None:
    there = pl.col("hospital") == "H2"
    turned = pl.col("died").replace({"yes": "no", "no": "yes"})
    labels = pl.when(there).then(turned).otherwise(pl.col("died")).alias("died")
    ages = pl.when(there).then(pl.lit("1")).otherwise(pl.col("age")).alias("age")
    other = [
        name_of(RUN.identity(study_table(tmp_path, hospitals(3, rows=20).with_columns(column), name)))
        for name, column in (("labels", labels), ("ages", ages))
    ]
    assert other[0] == name_of(RUN.identity(data)) != other[1]


def test_a_result_is_kept_with_its_weights_outputs_and_what_it_was(data: StudyTables, tmp_path: Path) -> None:
    job = TaskJob.of(tmp_path, [RUN], data)
    (path,) = job.paths
    assert not job.finished()
    job.perform(data)
    assert job.finished()
    tensors, about = read_tensors(path)
    assert tensors["outputs"].shape == (20, 1)
    assert any(name.startswith("weights.") for name in tensors)
    assert about["task"]["training"] == ["H0", "H1"]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.warns(FedILCWarning, match=r"is damaged .*; the run is done again"):
        assert not job.finished()


def test_validation_rows_are_scored_by_silo(data: StudyTables) -> None:
    task = replace(RUN, validation=0.25, predicted=None)
    _, about = task.perform(data)
    assert set(about["curve"]["2"]) == {"H0", "H1"}
    _, whole = replace(task, validation=0.0).perform(data)
    assert whole["curve"] == {}


def test_the_folds_of_a_site_alone_predict_each_of_its_examples_once(data: StudyTables) -> None:
    rows = []
    for fold in range(4):
        tensors, about = replace(ALONE, fold=fold).perform(data)
        assert about["failed"] is None
        assert tensors["outputs.0"].shape == tensors["outputs.1"].shape == (len(tensors["rows"]), 1)
        rows += tensors["rows"].tolist()
    assert sorted(rows) == list(range(20))


def test_a_site_with_nothing_to_learn_from_has_no_model_and_says_why(tmp_path: Path) -> None:
    there = pl.col("hospital") == "H0"
    empty = [
        pl.when(~there).then(pl.col(name)).otherwise(pl.lit(missing)).alias(name)
        for name, missing in (("age", "NA"), ("sex", None), ("lactate", -9.0))
    ]
    frame = hospitals(2, rows=20).drop("patient").with_columns(empty)
    tensors, about = ALONE.perform(study_table(tmp_path, frame))
    assert tensors == {}
    assert "no column is left to learn from" in about["failed"]


def test_tasks_are_stacked_by_what_they_are_and_give_what_each_gives_alone(data: StudyTables) -> None:
    other = replace(RUN, options={"rounds": 3, "learning_rate": 0.03}, training=("H1", "H2"), predicted="H0")
    tasks = [RUN, other, replace(RUN, seed=1), ALONE, replace(ALONE, fold=0), replace(RUN, hidden=None)]
    assert [len(stack) for stack in stacks_of(tasks, data)] == [2, 1, 2, 1]
    for stack in ([RUN, other], [ALONE, replace(ALONE, fold=0)]):
        for task, (tensors, about) in zip(stack, perform_all(stack, data), strict=True):
            alone, about_alone = task.perform(data)
            assert about["failed"] is about_alone["failed"] is None
            assert tensors.keys() == alone.keys()
            for name, tensor in tensors.items():
                torch.testing.assert_close(tensor, alone[name], rtol=1e-5, atol=1e-6)


def test_a_stack_that_is_partly_done_is_done_again_with_the_same_bits(
    data: StudyTables, tmp_path: Path
) -> None:
    other = replace(RUN, training=("H1", "H2"), predicted="H0")
    job = TaskJob.of(tmp_path, [RUN, other], data)
    assert job.cost == 2
    job.perform(data)
    before = [path.read_bytes() for path in job.paths]
    tensors = [read_tensors(path)[0] for path in job.paths]
    job.paths[1].unlink()
    assert not job.finished()
    TaskJob.of(tmp_path, [RUN, other], data).perform(data)
    assert job.finished()
    assert len(before) == len(list((tmp_path / "runs").iterdir()))
    for path, first in zip(job.paths, tensors, strict=True):
        assert all(torch.equal(value, first[name]) for name, value in read_tensors(path)[0].items())
    others = TaskJob.of(
        tmp_path, [RUN, other, replace(RUN, options={"rounds": 1, "learning_rate": 1.0})], data
    )
    assert set(others.paths).isdisjoint(job.paths)


def test_settings_are_chosen_on_a_part_of_the_rows_and_the_model_has_all(data: StudyTables) -> None:
    run = replace(RUN, predicted=None, scored=("H2",))
    _, every = run.perform(data)
    _, enough = replace(run, rows=20).perform(data)
    _, few = replace(run, rows=12).perform(data)
    assert every["curve"] == enough["curve"]
    assert every["curve"] != few["curve"]
    tensors, about = replace(ALONE, rows=12).perform(data)
    assert about["failed"] is None
    assert len(tensors["rows"]) == 5


def test_rows_for_choosing_keep_classes_in_proportion_and_patients_whole() -> None:
    y = np.repeat([0, 1], [90, 30])
    drawn = choosing_rows(y, 40, "binary", None)
    assert (drawn.sum(), y[drawn].sum()) == (40, 10)
    assert choosing_rows(y, 120, "binary", None).all()
    assert choosing_rows(y, None, "binary", None).all()
    patients = np.arange(120) // 3
    kept = choosing_rows(y, 40, "binary", patients).reshape(-1, 3)
    assert (kept.all(1) == kept.any(1)).all()
    assert 30 <= kept.sum() <= 50
