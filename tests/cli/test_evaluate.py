"""`fedilc evaluate`: scores with intervals on a site's own table."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
from command import Refusal, fedilc


def test_scores_have_intervals_on_screen_and_as_json(table_run: Path, new_rows: Path, tmp_path: Path) -> None:
    printed = fedilc("evaluate", table_run, new_rows, "--json", tmp_path / "scores.json")
    found = json.loads((tmp_path / "scores.json").read_text())
    assert found["rows"] == 30
    auroc = found["scores"]["auroc"]
    assert auroc["low"] <= auroc["value"] <= auroc["high"]
    shown = "auroc {value:.3f} [{low:.3f}, {high:.3f}] (caution: {caution})".format(**auroc)
    (line,) = (line for line in printed.splitlines() if line.split()[:1] == ["auroc"])
    assert line.split() == shown.split()
    assert auroc["caution"].endswith("events, fewer than 100")


def test_few_events_are_counted_and_their_scores_are_null_with_a_reason(
    table_run: Path, new_rows: Path, tmp_path: Path
) -> None:
    rows = pl.read_csv(new_rows)
    values = sorted(rows["died"].unique().to_list(), key=str)
    label = pl.when(pl.int_range(pl.len()) < 3).then(pl.lit(values[1])).otherwise(pl.lit(values[0]))
    rows.with_columns(label.alias("died")).write_csv(tmp_path / "few.csv")
    printed = fedilc("evaluate", table_run, tmp_path / "few.csv", "--json", tmp_path / "scores.json")
    auroc = json.loads((tmp_path / "scores.json").read_text())["scores"]["auroc"]
    assert (auroc["value"], auroc["reason"]) == (None, "3 events, fewer than 10")
    assert "3 events and 27 non-events" in " ".join(printed.split())
    assert "not estimable (3 events, fewer than 10)" in printed


def test_mistakes_are_one_sentence(table_run: Path, new_rows: Path, tmp_path: Path, refusal: Refusal) -> None:
    pl.read_csv(new_rows).drop("died").write_csv(tmp_path / "blank.csv")
    assert "has no label column 'died'" in refusal("evaluate", table_run, tmp_path / "blank.csv")
    nowhere = tmp_path / "no" / "scores.json"
    said = refusal("evaluate", table_run, new_rows, "--json", nowhere)
    assert said == f"{nowhere} cannot be written: No such file or directory"


def test_recalibration_writes_a_run_and_says_how_many_patients_it_takes(
    table_run: Path, site_rows: Path, tmp_path: Path, refusal: Refusal
) -> None:
    out, file = tmp_path / "new", tmp_path / "scores.json"
    options = ("--recalibrate", "slope", "--out", out, "--patient-column", "mrn")
    printed = " ".join(fedilc("evaluate", table_run, site_rows, *options, "--json", file).split())
    update = json.loads(file.read_text())["recalibration"]
    assert update["answer"] in printed
    assert [point["patients"] for point in update["learning_curve"]] == [50, 100]
    assert f"recalibrated model: {out}" in printed
    again = tmp_path / "again.json"
    fedilc("evaluate", out, site_rows, "--json", again)
    found = json.loads(again.read_text())["scores"]["calibration_slope"]["value"]
    assert abs(found - update["scores"]["apparent"]["calibration_slope"]["value"]) < 1e-4
    fedilc("predict", out, site_rows, "-o", tmp_path / "p.csv")
    assert "was recalibrated after training" in fedilc("report", out, "-o", tmp_path / "report.png")
    said = refusal("evaluate", table_run, site_rows, *options)
    assert said == f"{out} already holds a run; name another folder with --out, or remove it"
    few = refusal("evaluate", table_run, site_rows, "--recalibrate", "all", "--out", tmp_path / "x")
    assert few.startswith("--recalibrate is intercept or slope, not 'all'")
    assert "give --recalibrate" in refusal("evaluate", table_run, site_rows, "--out", tmp_path / "x")
