"""Trackers are told every round's numbers, in order, and say what to install if they are not there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fedilc import Federation, Silo, train
from fedilc.errors import ConfigError
from fedilc.training.callbacks import MLflow, TensorBoard

Told = list[tuple[Any, ...]]


def federation() -> Federation:
    x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    return Federation("line", [Silo("a", x, x[:, 0] > 1), Silo("b", x + 0.5, x[:, 0] > 1)])


def trained(callback: Any, **options: Any) -> list[dict[str, Any]]:
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    settings = {"rounds": 3, "learning_rate": 0.1, "callbacks": [callback]} | options
    return train(federation(), model, "fedsgd", **settings).history


def module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    """Put a module that holds only these in place of one that may not be installed."""
    stub = ModuleType(name)
    vars(stub).update(contents)
    monkeypatch.setitem(sys.modules, name, stub)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What both trackers were told."""
    told: Told = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int | None = None) -> None:
            told.append(("opened", folder, purge_step))

        def add_scalar(self, *what: Any) -> None:
            told.append(what)

        def close(self) -> None:
            told.append(("closed",))

    class MlflowClient:
        def __init__(self, tracking_uri: str) -> None:
            told.append(("opened", tracking_uri))

        def get_experiment_by_name(self, name: str) -> None:
            return None

        def create_experiment(self, name: str) -> str:
            return f"id of {name}"

        def create_run(self, experiment: str, run_name: str | None) -> Any:
            return SimpleNamespace(info=SimpleNamespace(run_id=f"run in {experiment}"))

        def log_metric(self, run: str, key: str, value: float, timestamp: int, step: int) -> None:
            assert run == "run in id of fedilc"
            told.append((key, value, step))

        def log_param(self, run: str, key: str, value: Any) -> None:
            told.append(("setting", key, value))

        def set_terminated(self, run: str) -> None:
            told.append(("closed",))

    module(monkeypatch, "torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    module(monkeypatch, "mlflow", MlflowClient=MlflowClient)
    return told


@pytest.mark.parametrize(
    ("callback", "place"),
    [(TensorBoard, "tensorboard"), (MLflow, "mlflow.db")],
    ids=["tensorboard", "mlflow"],
)
def test_a_tracker_has_the_losses_of_every_round_in_the_run_folder(
    callback: Any, place: str, told: Told, tmp_path: Path
) -> None:
    history = trained(callback(), out=tmp_path / "run")
    assert str(tmp_path / "run" / place) in told[0][1]
    assert told[-1] == ("closed",)
    losses = [("train_loss", record["train_loss"], record["round"]) for record in history]
    assert [entry for entry in told if entry[0] == "train_loss"] == losses


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed: pip install 'fedilc[tensorboard]'",
    )
    trained(TensorBoard(), out=tmp_path / "run", rounds=2)
    history = trained(TensorBoard(), out=tmp_path / "run", resume=True)
    found = reader.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    losses = {event.step: event.value for event in found.Scalars("train_loss")}
    assert losses == pytest.approx({record["round"]: record["train_loss"] for record in history}, rel=1e-6)


def test_mlflow_reads_what_was_written(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'fedilc[mlflow]'")
    history = trained(MLflow(name="first"), out=tmp_path / "run")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("fedilc").experiment_id])
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    losses = [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "train_loss")]
    assert losses == [(record["round"], record["train_loss"]) for record in history]
    assert run.data.params["learning_rate"] == "0.1"
    assert run.data.params["algorithm"] == "fedsgd"


def test_a_run_that_resumes_goes_on_after_its_last_round(told: Told, tmp_path: Path) -> None:
    trained(TensorBoard(), out=tmp_path / "run", rounds=2)
    told.clear()
    trained(TensorBoard(), out=tmp_path / "run", resume=True)
    assert told[0][2] == 3
    assert {entry[2] for entry in told if entry[0] == "train_loss"} == {3}


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("callback", [TensorBoard, MLflow])
def test_without_a_folder_it_asks_for_one(callback: Any) -> None:
    with pytest.raises(ConfigError, match="has no folder to write to; give it one, or train"):
        trained(callback())


@pytest.mark.parametrize(
    ("callback", "needed"),
    [(TensorBoard, "torch.utils.tensorboard"), (MLflow, "mlflow")],
    ids=["tb", "mlflow"],
)
def test_what_is_not_installed_is_named_with_the_command_that_installs_it(
    callback: Any, needed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, needed, None)
    extra = callback.__name__.lower()
    with pytest.raises(ConfigError, match=rf"is not installed; .* pip install 'fedilc\[{extra}\]'"):
        trained(callback(), out=tmp_path / "run")
