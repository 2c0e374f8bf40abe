"""Quantities: from files and commands to a table, in every kind of algorithm, and the same over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from command import Refusal, fedilc
from fleets import assert_same_run, fleet
from torch import nn

from fedilc import Federation, Silo, train
from fedilc.storage.run_folder import RunFolder

EXPERIMENT = """
rounds = 40
learning_rate = 0.05
penalty_weight = 0.1
environment_size = 8
[data]
source = "files"
label = "days"
silos = { north = "north.csv", south = "south.csv" }
test = "east.csv"
loss = "regression"
[model]
hidden = [8]
"""
ALGORITHMS = ["fedsgd", "fishr-inter-geo", "fishr-intra-geo", "fedavg", "vrex", "coral", "iga", "irm"]


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Three sites whose length of stay depends on two columns."""
    for number, name in enumerate(("north", "south", "east")):
        random = np.random.default_rng(number)
        age, score = random.normal(size=(2, 60)) + number / 4
        days = 1.5 * age - score + 0.1 * random.normal(size=60)
        pl.DataFrame({"age": age, "score": score, "days": days}).write_csv(tmp_path / f"{name}.csv")
    (tmp_path / "stay.toml").write_text(EXPERIMENT)
    return tmp_path / "stay.toml"


def test_files_of_quantities_give_errors_in_the_table_and_no_accuracy(experiment: Path) -> None:
    out = experiment.parent / "run"
    said = fedilc("run", experiment, "-a", "fishr-inter-geo", "--out", out)
    assert "OOD RMSE" in said
    assert "OOD R²" in said
    assert "accuracy" not in said
    assert (out / "loss.png").exists()
    last = RunFolder(out).history()[-1]
    assert last["test_r2"] > 0.9
    assert last["test_loss"] == pytest.approx(last["test_rmse"] ** 2 / 2)
    assert {"validation_rmse", "validation_mae", "validation_r2", "validation_loss"} <= last.keys()
    assert not {key for key in last if "accuracy" in key or "auroc" in key or key == "fairness"}
    assert last["silos"]["north"]["validation_examples"] == 18
    assert json.loads((out / "run.json").read_text())["classes"] is None


def test_several_algorithms_are_compared_by_error(experiment: Path) -> None:
    words = [word for name in ("fedsgd", "fedavg") for word in ("-a", name)]
    said = fedilc("run", experiment, *words, "--rounds", 2, "--out", experiment.parent / "run")
    assert "RMSE" in said
    assert "Worst silo: its validation RMSE." in " ".join(said.split())
    assert "can be trained" in fedilc("check", experiment)


@pytest.mark.parametrize("loss", ["regression", "huber"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_kind_of_algorithm_learns_a_line(algorithm: str, loss: str, generator: torch.Generator) -> None:
    silos = []
    for name in "ab":
        x = torch.randn(40, 2, generator=generator)
        y = 2 * x[:, 0] - x[:, 1] + 0.5
        silos.append(Silo(name, x[:30], y[:30], x[30:], y[30:]))
    options: dict[str, Any] = {"rounds": 60, "learning_rate": 0.1, "penalty_weight": 0.01}
    if algorithm == "fishr-intra-geo":
        options["environment_size"] = 1
    if algorithm == "fedavg":
        options |= {"rounds": 20, "learning_rate": 1.0, "local_steps": 5}
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.weight)
    history = train(Federation("line", silos, loss=loss), model, algorithm, **options).history
    assert history[-1]["validation_rmse"] < 0.4 * history[0]["validation_rmse"]
    assert history[-1]["validation_r2"] > 0.8


def test_regression_over_http_gives_the_bits_of_local(experiment: Path) -> None:
    folder = experiment.parent
    fedilc("run", experiment, "--rounds", 4, "--out", folder / "local")
    data = {"silos": ["north", "south"], "inputs": [2], "columns": ["age", "score"], "test": "east.csv"}
    lines = [f"{key} = {json.dumps(value)}" for key, value in data.items()]
    remote = EXPERIMENT.partition("[data]")[0] + "\n".join(
        [
            "[data]",
            'source = "remote"',
            'label = "days"',
            'loss = "regression"',
            *lines,
            "[model]",
            "hidden = [8]",
        ]
    )
    (folder / "remote.toml").write_text(remote)
    with fleet(folder) as processes:
        coordinator, url = processes.serve(folder / "remote.toml", "--rounds", 4, "--out", folder / "rest")
        members = [
            processes.start("join", url, "--silo", name, "--data", f"{name}.csv", "--label", "days")
            for name in ("north", "south")
        ]
        assert coordinator.ended() == 0, coordinator.said
        assert [member.ended() for member in members] == [0, 0]
    assert_same_run(folder / "local", folder / "rest")


def test_a_model_of_classes_is_refused_for_quantities(experiment: Path, refusal: Refusal) -> None:
    assert "column 'days' holds the label" in refusal("run", experiment, "--set", "data.loss=binary")
