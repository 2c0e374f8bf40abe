"""`fedilc inspect`: from a user's table to what differs between silos, in one command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import Refusal, fedilc


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    silo = np.repeat(["north", "south", "west"], 60)
    x = random.standard_normal(180) + np.where(silo == "west", 2.0, 0.0)
    age = random.uniform(20, 90, 180)
    lost = (silo == "south") & (random.random(180) < 0.6)
    died = (random.random(180) < 1 / (1 + np.exp(-x))).astype(int)
    frame = pl.DataFrame({"hospital": silo, "age": np.where(lost, np.nan, age), "lactate": x, "died": died})
    path = tmp_path / "patients.csv"
    frame.with_columns(pl.col("age").fill_nan(None)).write_csv(path)
    return path


def test_what_differs_is_shown_in_tables_a_picture_and_a_sentence(patients: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = " ".join(
        fedilc("inspect", patients, "--silo-column", "hospital", "--label", "died", "--out", out).split()
    )
    assert "1 of 2 columns differ much (lactate)" in text
    assert "age are missing much more often at some silos" in text
    assert "fedilc study" in text
    assert (out / "shift.png").stat().st_size > 1000
    columns = pl.read_csv(out / "tables" / "columns.csv")
    assert columns["column"].to_list() == ["lactate", "age"]


def test_a_table_without_a_label_is_one_sentence(patients: Path, refusal: Refusal) -> None:
    said = refusal("inspect", patients, "--silo-column", "hospital")
    assert said.startswith("--label is missing")


def test_one_silo_cannot_be_compared(patients: Path, refusal: Refusal) -> None:
    one = pl.read_csv(patients).filter(pl.col("hospital") == "west")
    one.write_csv(patients)
    said = refusal("inspect", patients, "--silo-column", "hospital", "--label", "died")
    assert said == "an inspection compares silos, and patients has one, 'west'; give others' tables too"


def test_an_experiment_that_reads_no_tables_is_one_sentence(refusal: Refusal) -> None:
    assert "holds no tables" in refusal("inspect", "color-digits")
