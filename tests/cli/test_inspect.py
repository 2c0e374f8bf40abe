"""`fedilc inspect`: from a user's table to what differs between silos, in one command."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
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
    assert "age is missing much more often at some silos" in text
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


def test_the_command_that_applies_all_proposals_can_be_pasted(patients: Path) -> None:
    frame = pl.read_csv(patients)
    random = np.random.default_rng(0)
    labs = {
        f"lab {k}": np.where(random.random(180) < 0.2, -9999, random.normal(5, 1, 180)) for k in range(30)
    }
    asked = {f"q{k}": np.where(random.random(180) < 0.2, 99, random.integers(0, 5, 180)) for k in range(2)}
    frame = frame.with_columns(**labs, **asked).with_columns(
        (pl.col("died") * 2 + pl.col("lactate") / 1e3).alias("billed $"),
        pl.concat_str(pl.lit("site "), "hospital").alias("place"),
    )
    copy = frame.filter(pl.col("hospital") == "west").with_columns(pl.lit("west's copy").alias("hospital"))
    pl.concat([frame, copy]).write_csv(patients)
    words = ["inspect", patients.name, "--silo-column", "hospital", "--label", "died", "--out", "out"]
    program = f"{shlex.quote(sys.executable)} -m fedilc"

    def shell(line: str) -> str:
        done = subprocess.run(
            line, shell=True, cwd=patients.parent, capture_output=True, text=True, check=True, env=os.environ
        )
        return done.stdout

    said = shell(f"{program} {shlex.join(words)}").splitlines()
    notes = [line for line in said if line.startswith("note: ")]
    assert any("-9999 probably means a missing value in 30 columns ('lab 0'" in note for note in notes)
    assert len(notes) <= 8
    details = (patients.parent / "out" / "notes.txt").read_text().splitlines()
    assert sum("probably means a missing value" in line for line in details) == 32
    (pasted,) = [line.strip() for line in said if line.startswith("  fedilc inspect")]
    assert details[-1] == pasted
    again = shell(f"{program} {pasted.removeprefix('fedilc ')}")
    assert "to apply all these proposals" not in again
    assert not any(name in again for name in ("billed $", "place", "copy of", "probably means"))
    assert "lab 0" in again


def test_only_some_columns_of_some_sites_are_inspected(
    patients: Path, tmp_path: Path, refusal: Refusal
) -> None:
    words = ("inspect", patients, "--silo-column", "hospital", "--label", "died", "--out", tmp_path / "out")
    fedilc(*words, "--columns", "age", "--exclude-site", "west")
    assert pl.read_csv(tmp_path / "out" / "tables" / "columns.csv")["column"].to_list() == ["age"]
    assert pl.read_csv(tmp_path / "out" / "tables" / "silos.csv")["silo"].to_list() == ["north", "south"]
    assert refusal(*words, "--columns", "age,,x").startswith("--columns 'age,,x' is not a list of columns")
    assert "--exclude-site names 'wset', which is not a silo; did you mean 'west'?" in refusal(
        *words, "--exclude-site", "wset"
    )
