"""The UCI heart disease data as published: what is kept of it, and what it becomes."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_data import real_data

from fedilc.config import read_experiment
from fedilc.data.benchmarks.heart_disease import HOSPITALS, heart_disease
from fedilc.errors import DataError


def write(folder: Path, width: int = 14) -> Path:
    folder.mkdir()
    for hospital in HOSPITALS:
        rows = [["63", "1", "4", "140", "260", "0", "1", "112", "1", "3", "2", "?", "?", "2"][:width]]
        rows += [["44", "0", "3", "0", "0", "?", "0", "127", "0", ".5", "1", "0", "3", "0"][:width]]
        (folder / f"processed.{hospital}.data").write_text("\n".join(map(",".join, rows)) + "\n")
    return folder


def test_every_patient_is_kept_and_zeros_of_cholesterol_count_as_missing(tmp_path: Path) -> None:
    found = heart_disease(write(tmp_path / "h"))
    made = found.fit(["cleveland", "va"])
    assert found.silos["va"].y.tolist() == [1, 0]
    x = made.transform(found.silos["va"].frame)
    assert x[:, made.columns.index("chol missing")].tolist() == [0.0, 1.0]
    assert x[:, made.columns.index("thal missing")].tolist() == [1.0, 0.0]
    assert {"cp=3", "cp=4"} <= set(made.columns)


def test_files_that_are_not_there_or_not_whole_are_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fedilc data fetch heart-disease"):
        heart_disease(tmp_path)
    with pytest.raises(DataError, match="has 5 columns in place of 14"):
        heart_disease(write(tmp_path / "h", 5))


def test_the_published_files_have_920_patients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDILC_DATA", str(real_data("heart-disease")))
    settings, folder = read_experiment("heart-disease")
    store = settings.data.store(0, folder)
    assert store.y_test is not None
    counts = {name: len(store.open(name)) + len(store.open(name).x_val) for name in store.silos}
    assert counts == {"cleveland": 303, "hungarian": 294, "switzerland": 123}
    assert len(store.y_test) == 200
    assert store.columns[:4] == ("age", "sex", "cp=1", "cp=2")
