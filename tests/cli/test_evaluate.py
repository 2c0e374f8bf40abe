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
    (line,) = (line for line in printed.splitlines() if line.split()[:1] == ["auroc"])
    assert line.split() == ["auroc", *"{value:.3f} [{low:.3f}, {high:.3f}]".format(**auroc).split()]


def test_the_seed_of_the_bootstrap_moves_the_intervals_and_not_the_scores(
    table_run: Path, new_rows: Path, tmp_path: Path
) -> None:
    scores = []
    for seed in (0, 0, 1):
        fedilc("evaluate", table_run, new_rows, "--seed", seed, "--json", tmp_path / "scores.json")
        scores.append(json.loads((tmp_path / "scores.json").read_text())["scores"]["log_loss"])
    assert scores[0] == scores[1]
    assert scores[0] != scores[2]
    assert scores[0]["value"] == scores[2]["value"]


def test_mistakes_are_one_sentence(table_run: Path, new_rows: Path, tmp_path: Path, refusal: Refusal) -> None:
    pl.read_csv(new_rows).drop("died").write_csv(tmp_path / "blank.csv")
    assert "has no label column 'died'" in refusal("evaluate", table_run, tmp_path / "blank.csv")
    nowhere = tmp_path / "no" / "scores.json"
    said = refusal("evaluate", table_run, new_rows, "--json", nowhere)
    assert said == f"{nowhere} cannot be written: No such file or directory"
