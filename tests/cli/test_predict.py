"""`fedilc predict`: scores of new rows, for runs over tables and over plain files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command import Refusal, fedilc

import fedilc as package


def test_predict_writes_a_score_per_row(table_run: Path, new_rows: Path, tmp_path: Path) -> None:
    printed = fedilc("predict", table_run, new_rows, "-o", tmp_path / "scores.csv", "--copy", "mrn")
    scores = pl.read_csv(tmp_path / "scores.csv")
    assert "30 rows scored by round" in printed
    assert scores.columns == ["row", "mrn", "probability", "prediction"]
    wanted = package.load(table_run).predict_proba(new_rows)[:, 1]
    np.testing.assert_allclose(scores["probability"].to_numpy(), wanted)


def test_mistakes_are_one_sentence(table_run: Path, new_rows: Path, tmp_path: Path, refusal: Refusal) -> None:
    pl.read_csv(new_rows).drop("age").write_csv(tmp_path / "short.csv")
    out = tmp_path / "s.csv"
    assert "has no column 'age', which the model was trained with" in refusal(
        "predict", table_run, tmp_path / "short.csv", "-o", out
    )
    (tmp_path / "none").mkdir()
    assert "holds no run" in refusal("predict", tmp_path / "none", new_rows, "-o", out)
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("{}")
    found = refusal("predict", tmp_path / "runs", new_rows, "-o", out)
    assert "is not a run, but holds runs (one, two); name one, such as" in " ".join(found.split())
    assert "does not exist" in refusal("predict", table_run, tmp_path / "no.csv", "-o", out)
    assert "no column 'name' to copy" in refusal("predict", table_run, new_rows, "-o", out, "--copy", "name")
    assert "has neither ending" in refusal("predict", table_run, new_rows, "-o", tmp_path / "s.xlsx")
    assert "cannot be written" in refusal("predict", table_run, new_rows, "-o", tmp_path / "no" / "s.csv")
    assert not out.exists()


def test_the_held_out_silo_is_the_test_set_and_has_no_say(table_run: Path) -> None:
    facts = json.loads((table_run / "run.json").read_text())
    assert list(facts["silos"]) == ["h0", "h1"]
    made = json.loads((table_run / "preprocessing.json").read_text())
    assert [feature["name"] for feature in made["features"]] == ["age", "sex"]
    table = pl.read_csv(table_run.parent / "patients.csv", separator=";")
    train = table.filter(pl.col("hospital") != "h2")["age"].cast(pl.Float64, strict=False)
    assert made["features"][0]["mean"] == pytest.approx(train.mean())


def test_a_run_of_plain_files_predicts_by_its_columns(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        x = random.normal(size=(30, 2))
        frame = pl.DataFrame({"u": x[:, 0], "v": x[:, 1], "label": (x[:, 0] > 0).astype(int)})
        frame.write_csv(tmp_path / f"{name}.csv")
    (tmp_path / "e.toml").write_text(
        'rounds = 2\nlearning_rate = 0.05\nalgorithm = "fedsgd"\n[data]\nsource = "files"\nsilos = "*.csv"\n'
        '[model]\nname = "mlp"\nhidden = [4]\n'
    )
    fedilc("run", tmp_path / "e.toml", "--out", tmp_path / "run")
    fedilc("predict", tmp_path / "run", tmp_path / "a.csv", "-o", tmp_path / "scores.csv")
    assert pl.read_csv(tmp_path / "scores.csv").columns == ["row", "probability", "prediction"]


def test_texts_that_a_spreadsheet_would_take_for_formulas_are_texts_in_csv(
    table_run: Path, new_rows: Path, tmp_path: Path
) -> None:
    texts = ["=cmd|' /C calc'!A0", "+1+2", "-2", "@SUM(A1)", " =1", "a=b", "\t=1", "-1e5", "é", None]
    notes = pl.Series("=note", (texts * 3)[:30])
    pl.read_csv(new_rows).with_columns(notes).write_csv(tmp_path / "new.csv")
    copied = "predict", table_run, tmp_path / "new.csv", "--copy", "=note", "-o"
    fedilc(*copied, tmp_path / "scores.csv")
    found = pl.read_csv(tmp_path / "scores.csv", infer_schema=False)
    safe = ["'=cmd|' /C calc'!A0", "'+1+2", "-2", "'@SUM(A1)", "' =1", "a=b", "'\t=1", "-1e5", "é", None]
    assert found["'=note"].to_list() == (safe * 3)[:30]
    fedilc(*copied, tmp_path / "scores.parquet")
    assert pl.read_parquet(tmp_path / "scores.parquet")["=note"].to_list() == (texts * 3)[:30]
