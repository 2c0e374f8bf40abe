"""A run from its first round to its last: what is recorded, what its folder says, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import fedilc
from small_silos import QUICK, silo
from torch import nn

from fedilc import Federation, train
from fedilc.data.embedded_data import color_digits
from fedilc.errors import ConfigError
from fedilc.storage.run_folder import RunFolder
from rest import remote, training_of


def test_evaluation_may_be_rarer_than_rounds() -> None:
    options = QUICK | {"rounds": 7, "evaluate_every": 3}
    result = train(Federation("f", [silo("a", 1)]), nn.Linear(3, 1), **options)
    measured = [record["round"] for record in result.history if "validation_loss" in record]
    assert measured == [1, 3, 6, 7]


def test_a_record_holds_means_silos_fairness_and_the_test() -> None:
    result = train(
        color_digits(0),
        nn.Sequential(nn.Flatten(), nn.Linear(128, 1)),
        "geometric",
        rounds=1,
        learning_rate=0.01,
    )
    record = result.history[0]
    assert {
        "round",
        "train_loss",
        "validation_loss",
        "validation_accuracy",
        "test_loss",
        "test_accuracy",
        "test_auroc",
        "test_auprc",
        "fairness",
        "silos",
        "sign_agreement",
        "zero_share",
    } <= set(record)
    silo = record["silos"]["flip-0.15"]
    assert silo["examples"] == 200
    assert {"train_loss", "validation_loss", "validation_accuracy", "validation_auroc"} <= set(silo)


def test_a_run_without_a_folder_cannot_be_resumed() -> None:
    with pytest.raises(ConfigError, match=r"resume=True needs out=\.\.\., the folder of the run to continue"):
        train(Federation("f", [silo("a", 1)]), nn.Linear(3, 1), resume=True, **QUICK)


def test_more_silos_than_there_are_cannot_be_needed() -> None:
    with pytest.raises(ConfigError, match="min_silos=2 is more than the 1 silos there are"):
        train(Federation("f", [silo("a", 1)]), nn.Linear(3, 1), min_silos=2, **QUICK)


def write_table(path: Path, seed: int, classes: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(24, 2)).tolist()
    lines = [f"{age:.4f},{i % classes},{dose:.4f}" for i, (age, dose) in enumerate(rows)]
    path.write_text("\n".join(["age,died,dose", *lines]) + "\n")


@pytest.mark.parametrize("in_memory", ["true", "false"])
@pytest.mark.parametrize(("loss", "classes"), [("binary", 2), ("multiclass", 3)])
def test_run_json_keeps_the_columns_in_order_the_label_and_the_classes(
    tmp_path: Path, loss: str, classes: int, in_memory: str
) -> None:
    for seed, name in enumerate(("north", "south")):
        write_table(tmp_path / f"{name}.csv", seed, classes)
    (tmp_path / "mine.toml").write_text(
        f"""
        rounds = 1
        learning_rate = 0.1
        [data]
        source = "files"
        silos = {{ north = "north.csv", south = "south.csv" }}
        label = "died"
        loss = "{loss}"
        in_memory = {in_memory}
        """
    )
    fedilc("run", tmp_path / "mine.toml", "--out", tmp_path / "run", "--set", "model.hidden=[4]")
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert kept["columns"] == ["age", "dose"]
    assert kept["label"] == "died"
    assert kept["classes"] == list(range(classes))


def test_a_coordinator_keeps_what_it_knows_of_the_columns(tmp_path: Path) -> None:
    training, _ = training_of(remote(inputs=2, data={"columns": ["age", "dose"]}, rounds=1))
    folder = RunFolder(tmp_path / "run")
    training.open_folder(folder, False, {}, None)
    kept = folder.settings()
    assert (kept["columns"], kept["label"], kept["classes"]) == (["age", "dose"], None, [0, 1])
