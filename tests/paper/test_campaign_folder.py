"""The folder of a campaign: what is written is what is read, and the history is one table."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from campaigns import campaign, history

from fedilc.errors import ConfigError
from fedilc.evaluation.inconsistency import Scores
from fedilc.paper.campaign import Campaign, summarise
from fedilc.paper.campaign_folder import history_csv, read_campaign, remake_campaign, write_campaign


def test_a_campaign_is_read_as_it_was_written_and_made_again_with_the_same_tables(tmp_path: Path) -> None:
    one = campaign({"fedsgd": [0.5, 0.6]}, note="2 seeds")
    pairs = {("a", "a"): 1.0, ("a", "b"): 4.0, ("b", "a"): 4.0, ("b", "b"): 1.0}
    scores = {"variance": {"fedsgd": Scores({0: pairs})}}
    tables = write_campaign(tmp_path, one, scores)
    again, found = read_campaign(tmp_path)
    assert (again.name, again.note, found) == (one.name, one.note, scores)
    assert summarise(again)["fedsgd"]["oracle"] == summarise(one)["fedsgd"]["oracle"]
    assert again.values("fedsgd", "last", "inconsistency_variance") == {0: 4.0}
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.json")}
    assert remake_campaign(tmp_path) == tables
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.json")} == files


def test_a_folder_without_a_campaign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the folder of a finished campaign"):
        read_campaign(tmp_path)


def test_the_history_has_a_line_for_every_round_of_every_run_with_five_digits() -> None:
    one = campaign({"fedsgd": [1 / 3, 0.5], "geometric": [0.25]})
    lines = list(csv.DictReader(io.StringIO(history_csv(one))))
    assert [(line["algorithm"], line["seed"], line["round"]) for line in lines] == [
        (algorithm, seed, number)
        for algorithm, seed in (("fedsgd", "0"), ("fedsgd", "1"), ("geometric", "0"))
        for number in ("6", "7", "8")
    ]
    assert lines[0]["test_loss"] == "0.33333"
    for line, record in zip(lines, [*history(1 / 3), *history(0.5), *history(0.25)], strict=True):
        for key in list(line)[3:]:
            assert float(line[key]) == pytest.approx(record[key], rel=1e-4)


def test_the_history_leaves_blank_what_a_round_did_not_measure() -> None:
    rounds = [{"round": 1, "train_loss": 0.5, "test_loss": None}]
    line = next(csv.DictReader(io.StringIO(history_csv(Campaign("demo", {"fedsgd": {0: rounds}})))))
    assert {key for key, value in line.items() if value} == {"algorithm", "seed", "round", "train_loss"}
