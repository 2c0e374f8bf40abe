"""The UCI heart disease data as published: what is kept of it, and what it becomes."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from fedilc.config import read_experiment
from fedilc.data import embedded_data as module
from fedilc.data.embedded_data import HOSPITALS, heart_disease
from fedilc.errors import DataError


def write(folder: Path, width: int = 14) -> Path:
    folder.mkdir()
    for number, hospital in enumerate(HOSPITALS):
        rows = [["63", "1", "4", "140", "260", "0", "1", "112", "1", "3", "2", "?", "?", "2"][:width]]
        rows += [["44", "0", "3", "0", "0", "?", "0", "127", "0", ".5", "1", "0", "3", "0"][:width]]
        rows = [[f"{float(age) + number}", *row] for age, *row in rows]  # no patient is at two hospitals
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


def test_files_of_ones_own_that_are_missing_or_not_whole_are_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError, match=r"cleveland.data does not exist; correct it, or remove .*empty to use"
    ):
        heart_disease(tmp_path / "empty")
    with pytest.raises(DataError, match="has 5 columns instead of 14"):
        heart_disease(write(tmp_path / "h", 5))


PUBLISHED = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}


def test_the_package_has_the_published_files_and_says_whose_they_are() -> None:
    place = Path(module.__file__).with_name("embedded_files") / "heart-disease"
    for hospital, digest in PUBLISHED.items():
        content = gzip.decompress((place / f"processed.{hospital}.data.gz").read_bytes())
        assert hashlib.sha256(content).hexdigest() == digest
    said = (place / "ATTRIBUTION.md").read_text()
    for needed in (
        "Janosi",
        "Steinbrunn",
        "Pfisterer",
        "Detrano",
        "10.24432/C52P4X",
        "CC BY 4.0",
        "licenses/by/4.0",
    ):
        assert needed in said


def test_without_any_data_folder_there_are_920_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDILC_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings, folder = read_experiment("heart-disease")
    store = settings.data.store(0, folder)
    assert store.y_test is not None
    counts = {name: len(store.open(name)) + len(store.open(name).x_val) for name in store.silos}
    assert counts == {"cleveland": 303, "hungarian": 294, "switzerland": 123}
    assert len(store.y_test) == 200
    assert store.columns[:4] == ("age", "sex", "cp=1", "cp=2")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_ones_own_is_read_in_place_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "heart-disease")
    monkeypatch.setenv("FEDILC_DATA", str(tmp_path))
    settings, folder = read_experiment("heart-disease")
    assert len(settings.data.store(0, folder).y_test) == 2
