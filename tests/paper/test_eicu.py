"""`fedilc data eicu` as a user meets it, and the eICU experiments as they are shipped."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import Refusal, fedilc
from real_data import real_data

from fedilc.config import read_experiment
from fedilc.errors import DataError
from fedilc.paper.eicu import read_patients


@pytest.fixture(autouse=True)
def _own_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command sets the variable; a test gives it back, and never writes into real data."""
    monkeypatch.setenv("FEDILC_DATA", str(tmp_path / "data"))


def tables(folder: Path, patients: int = 120) -> Path:
    """Raw tables with two hospitals, the first the larger, and three medicines."""
    folder.mkdir(parents=True, exist_ok=True)
    number = np.arange(patients)
    pl.DataFrame(
        {
            "patientunitstayid": number,
            "uniquepid": [f"p{n}" for n in number],
            "patienthealthsystemstayid": number,
            "hospitalid": np.where(number % 3 == 0, 2, 1),
            "hospitaldischargeyear": 2014,
            "hospitaldischargestatus": np.where(number % 4 == 0, "Expired", "Alive"),
            "unitvisitnumber": 1,
            "age": 50,
        }
    ).write_csv(folder / "patient.csv")
    orders = {"patientunitstayid": np.repeat(number, 2), "drughiclseqno": np.arange(2 * patients) % 3 + 1}
    pl.DataFrame({**orders, "drugname": "x", "drugordercancelled": "No"}).write_csv(folder / "medication.csv")
    return folder


def test_the_command_writes_a_table_that_the_experiment_reads_and_says_what_it_dropped(
    tmp_path: Path,
) -> None:
    out = tmp_path / "eicu.parquet"
    said = fedilc("data", "eicu", "--from", tables(tmp_path / "raw"), "--out", out, "--min-patients", 40)
    for line in (
        "found in the tables",
        "orders that were cancelled",
        "silos: 2 by hospital, of 40 to 80 patients",
    ):
        assert line in said
    assert "medicines: 3 kept of 3; orders were known 100.0% by its own code" in said
    assert "died: 30 of 120 patients (25.0%)" in said
    settings, _ = read_experiment("eicu", [f"data.file={out}", "data.silos=1"])
    federation = settings.data.build(0, tmp_path)
    assert (federation.name, [silo.name for silo in federation.silos]) == ("eicu", ["hospital-1"])
    assert federation.x_test is not None
    assert federation.x_test.shape == (40, 3)


def test_without_paths_the_data_folder_holds_both(tmp_path: Path) -> None:
    tables(tmp_path / "elsewhere" / "eicu")
    fedilc("data", "eicu", "--data-dir", tmp_path / "elsewhere", "--min-patients", 1)
    assert len(read_patients(tmp_path / "elsewhere" / "eicu.parquet").died) == 120


@pytest.mark.parametrize("place", ["experiment", "working", "data"])
def test_a_prepared_table_is_found_beside_the_experiment_in_the_working_and_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for name in ("experiment", "working", "data"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "working")
    fedilc(
        "data",
        "eicu",
        "--from",
        tables(tmp_path / "raw"),
        "--out",
        tmp_path / place / "eicu.parquet",
        "--min-patients",
        1,
    )
    settings, _ = read_experiment("eicu", ["data.silos=1", "data.subset=0.5"])
    federation = settings.data.build(0, tmp_path / "experiment")
    assert len(federation.silos) == 1


def test_every_mistake_is_one_sentence_and_leaves_no_file(tmp_path: Path, refusal: Refusal) -> None:
    raw, out = tables(tmp_path / "raw"), tmp_path / "out" / "eicu.parquet"
    given = ("data", "eicu", "--out", out, "--from")
    assert "gone is not a folder; give the one that holds" in refusal(*given, tmp_path / "gone")
    assert "silo_by='hospitl' is unknown; did you mean" in refusal(*given, raw, "--silo-by", "hospitl")
    assert "lower --min-patients, or make silos of regions" in refusal(*given, raw, "--min-patients", 100)
    assert "holds no hospital.csv or hospital.csv.gz" in refusal(*given, raw, "--silo-by", "region")
    packed = gzip.compress((raw / "medication.csv").read_bytes())
    (raw / "medication.csv").unlink()
    assert "holds no medication.csv or medication.csv.gz" in refusal(*given, raw)
    (raw / "medication.csv.gz").write_bytes(packed[: len(packed) // 2])
    assert "medication.csv.gz cannot be read: unexpected end of file" in refusal(*given, raw)
    assert not list((tmp_path / "out").iterdir())


def test_an_experiment_without_its_data_says_how_to_get_it(tmp_path: Path, refusal: Refusal) -> None:
    said = refusal("run", "eicu", "--out", tmp_path / "run")
    assert "eicu.parquet does not exist; make it from eICU's tables with `fedilc data eicu`" in said
    assert said.endswith("or name yours with --set data.file=PATH")
    assert "get it with `fedilc data fetch eicu-demo`" in refusal(
        "run", "eicu-demo", "--out", tmp_path / "run"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["eicu", "eicu-demo", "eicu-synthetic"])
def test_an_experiment_has_the_papers_settings(name: str) -> None:
    settings, _ = read_experiment(name)
    chosen = (
        settings.learning_rate,
        settings.weight_decay,
        settings.penalty_weight,
        settings.environment_size,
    )
    assert chosen == (2e-4, 0.001, 0.1, 64)
    assert settings.model.name == "eicu-mlp"
    assert ("synthetic" in name) == ("SYNTHETIC" in settings.summary)


def test_a_demo_that_lacks_a_table_is_refused(tmp_path: Path) -> None:
    tables(tmp_path / "data" / "eicu-demo")
    settings, folder = read_experiment("eicu-demo")
    with pytest.raises(DataError, match=r"holds no hospital\.csv"):
        settings.data.build(0, folder)


def test_the_demo_experiment_runs_from_the_raw_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDILC_DATA", str(real_data("eicu-demo")))
    small = ("--rounds", 2, "--set", "model.hidden=[8]", "--out", tmp_path / "run")
    assert "eicu-demo" in fedilc("run", "eicu-demo", *small)
