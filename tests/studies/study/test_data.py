"""The data of a study: inputs made by the training silos alone, from whatever source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hospitals import hospitals, study_table
from PIL import Image

from fedilc.data import Federation, Silo
from fedilc.errors import ConfigError, DataError
from fedilc.studies.study.data import StudyArrays, StudyTables, study_data


def test_inputs_depend_on_the_training_silos_and_on_no_other(tmp_path: Path) -> None:
    frame = hospitals(3, rows=12)
    data = study_table(tmp_path, frame)
    there = pl.col("hospital") == "H2"
    older = pl.when(there).then(pl.lit("99")).otherwise(pl.col("age")).alias("age")
    changed = study_table(tmp_path, frame.with_columns(older), "other")
    assert torch.equal(data.inputs(["H0", "H1"], "H0"), changed.inputs(["H0", "H1"], "H0"))
    assert not torch.equal(data.inputs(["H0", "H2"], "H0"), changed.inputs(["H0", "H2"], "H0"))


def test_a_fingerprint_is_of_the_features_and_not_of_the_labels(tmp_path: Path) -> None:
    frame = hospitals(2, rows=12)
    turned = frame.with_columns(pl.col("died").replace({"yes": "no", "no": "yes"}))
    older = frame.with_columns(pl.lit("70").alias("age"))
    data, same, other = (study_table(tmp_path, f, n) for f, n in ((frame, "a"), (turned, "b"), (older, "c")))
    assert data.fingerprints == same.fingerprints
    assert set(data.fingerprints.values()).isdisjoint(other.fingerprints.values())


def test_rows_of_a_site_fit_its_own_preprocessing(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(2, rows=12))
    own = data.inputs_by_rows("H0", np.arange(12))
    assert torch.equal(own, data.inputs(["H0"], "H0"))
    assert not torch.equal(data.inputs_by_rows("H0", np.arange(6)), own)


def test_a_federation_gives_its_arrays_with_validation_examples_and_without_its_test_set() -> None:
    silo = Silo("a", torch.zeros(3, 2), [0, 1, 0], torch.ones(2, 2), [1, 1])
    data = StudyArrays.of(Federation("f", [silo], torch.zeros(9, 2), torch.zeros(9)))
    assert data.labels["a"].tolist() == [0, 1, 0, 1, 1]
    assert data.inputs([], "a").shape == data.inputs_by_rows("a", np.arange(1)).shape == (5, 2)
    assert (data.silos, data.is_table, data.outputs, data.notes) == (("a",), True, 1, ())


def test_tables_and_a_data_set_by_name_are_read(tmp_path: Path) -> None:
    hospitals(2, rows=12).write_csv(tmp_path / "patients.csv")
    table = study_data([str(tmp_path / "patients.csv")], label="died", silo_column="hospital")
    assert isinstance(table, StudyTables)
    assert (table.name, table.silos, table.loss) == ("patients", ("H0", "H1"), "binary")
    for name in ("H0", "H1"):
        hospitals(2, rows=12).filter(pl.col("hospital") == name).write_csv(tmp_path / f"{name}.csv")
    files = study_data([str(tmp_path / f"{name}.csv") for name in ("H0", "H1")], label="died")
    assert (files.name, files.silos) == (tmp_path.name, ("H0", "H1"))
    digits = study_data(["color-digits"])
    assert isinstance(digits, StudyArrays)
    assert not digits.is_table


def test_an_experiment_of_ones_own_gives_its_tables(tmp_path: Path) -> None:
    hospitals(2, rows=12).write_csv(tmp_path / "patients.csv")
    (tmp_path / "mine.toml").write_text(
        "rounds = 1\nlearning_rate = 0.1\n[data]\nsource = 'tables'\nfiles = ['patients.csv']\n"
        "label = 'died'\nsilo_column = 'hospital'\n"
    )
    data = study_data([str(tmp_path / "mine.toml")])
    assert isinstance(data, StudyTables)
    assert (data.name, data.silos) == ("mine", ("H0", "H1"))
    changed = study_data(
        [str(tmp_path / "mine.toml")], exclude_site=["H1"], drop=["age"], missing=["lactate=-9"]
    )
    assert isinstance(changed, StudyTables)
    assert changed.silos == ("H0",)
    assert changed.tables.fit(["H0"]).missing == ("lactate=-9",)
    assert "age" not in changed.tables.silos["H0"].frame.columns
    assert changed.labels["H0"].tolist() == data.labels["H0"].tolist()
    with pytest.raises(ConfigError, match="`label` cannot be given for mine, which has its own"):
        study_data([str(tmp_path / "mine.toml")], label="sex")
    with pytest.raises(ConfigError, match="`drop` is for tables, and color-digits holds none"):
        study_data(["color-digits"], drop=["age"])


def test_a_folder_of_images_is_read_by_site_and_class(tmp_path: Path) -> None:
    for site in ("a", "b"):
        for name in ("cat", "dog"):
            (tmp_path / "pictures" / site / name).mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (20, 20)).save(tmp_path / "pictures" / site / name / f"{number}.png")
    data = study_data([str(tmp_path / "pictures")], image_size=16)
    assert (data.name, data.silos, data.loss, data.is_table) == ("pictures", ("a", "b"), "binary", False)
    assert data.inputs([], "a").shape == (4, 3, 16, 16)


@pytest.mark.parametrize(
    ("sources", "label", "error", "sentence"),
    [
        (["none.csv"], "died", DataError, "none.csv does not exist; give a table"),
        (["hart-disease"], None, ConfigError, "neither a file nor a data set; did you mean 'heart-disease'"),
        (["patients.csv"], None, ConfigError, "`label` is missing"),
        (["patients.csv"], "died", ConfigError, "is one table; name the column of silos"),
        (["patients.csv", "folder"], "died", DataError, "folder is a folder; give tables"),
    ],
)
def test_what_is_no_source_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sources: list[str],
    label: str | None,
    error: type[Exception],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    hospitals(2, rows=12).write_csv("patients.csv")
    Path("folder").mkdir()
    with pytest.raises(error, match=sentence):
        study_data(sources, label=label)
