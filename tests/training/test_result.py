"""The model of the round one chose: in memory, in the run folder, after a resume; and what run.json says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command import fedilc
from torch import Tensor, nn

from fedilc import Federation, Result, Silo, train
from fedilc.errors import CheckpointError, ConfigError, FedILCWarning
from fedilc.federation import RunFolder
from fedilc.federation.tensor_files import read_tensors
from fedilc.models import build_model
from rest import remote, training_of

ROUNDS = 8


@pytest.fixture(scope="module")
def federation() -> Federation:
    """Silos whose validation labels contradict training, and a test site whose labels do."""
    generator = torch.Generator().manual_seed(5)
    silos = []
    for name in ("a", "b"):
        x = torch.randn(40, 3, generator=generator)
        y = (x[:, 0] > 0).float()
        silos.append(Silo(name, x[:24], y[:24], x[24:], 1 - y[24:]))
    x = torch.randn(30, 3, generator=generator)
    return Federation("contrary", silos, x, (x[:, 0] < 0).float())


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build_model("mlp", (3,), 1, seed=1, hidden=[5])


def go(federation: Federation, model: nn.Module, rounds: int = ROUNDS, **more: Any) -> Result:
    return train(federation, model, "fedsgd", rounds=rounds, learning_rate=0.1, **more)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("criterion", ["validation", "oracle", "last"])
@pytest.mark.parametrize("in_folder", [True, False])
def test_the_best_model_is_the_one_a_run_of_that_many_rounds_ends_with(
    federation: Federation, model: nn.Module, criterion: str, in_folder: bool, tmp_path: Path
) -> None:
    result = go(federation, model, out=tmp_path / "run" if in_folder else None)
    chosen = result.best(criterion)["round"]
    assert criterion == "last" or chosen < ROUNDS
    found = result.best_model(criterion)
    assert_same(weights(found), weights(go(federation, model, chosen).model))
    assert not found.training
    with torch.no_grad():
        next(found.parameters()).zero_()
    assert_same(weights(result.best_model(criterion)), weights(go(federation, model, chosen).model))
    assert_same(weights(result.model), weights(result.best_model("last")))


def test_train_writes_the_best_rounds_weights_as_the_command_does(
    federation: Federation, model: nn.Module, tmp_path: Path
) -> None:
    result = go(federation, model, out=tmp_path)
    for criterion in ("validation", "oracle"):
        found, about = read_tensors(tmp_path / f"best-{criterion}.safetensors")
        assert about["round"] == result.best(criterion)["round"]
        assert_same(found, weights(result.best_model(criterion)))


def test_without_validation_and_test_there_is_nothing_to_keep(
    federation: Federation, model: nn.Module, tmp_path: Path
) -> None:
    bare = Federation("bare", [Silo(silo.name, silo.x, silo.y) for silo in federation.silos])
    result = go(bare, model, out=tmp_path)
    assert not list(tmp_path.glob("best-*"))
    with pytest.raises(ConfigError, match="needs validation examples"):
        result.best_model()
    assert_same(weights(result.best_model("last")), weights(result.model))


@pytest.mark.parametrize("done", [5, ROUNDS])
def test_a_resumed_run_takes_the_best_model_from_its_folder(
    federation: Federation, model: nn.Module, tmp_path: Path, done: int
) -> None:
    go(federation, model, done, out=tmp_path)
    resumed = go(federation, model, out=tmp_path, resume=True)
    straight = go(federation, model)
    for criterion in ("validation", "oracle"):
        assert_same(weights(resumed.best_model(criterion)), weights(straight.best_model(criterion)))


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_best_file_that_is_lost_stops_no_resume_and_is_said_when_it_is_asked_for(
    federation: Federation, model: nn.Module, tmp_path: Path, damage: str
) -> None:
    chosen = go(federation, model, out=tmp_path).best()["round"]
    file = tmp_path / "best-validation.safetensors"
    if damage == "gone":
        file.unlink()
        resumed = go(federation, model, out=tmp_path, resume=True)
    else:
        body = bytearray(file.read_bytes())
        body[-3] ^= 255
        file.write_bytes(bytes(body))
        with pytest.warns(FedILCWarning, match=r"best-validation\.safetensors is damaged"):
            resumed = go(federation, model, out=tmp_path, resume=True)
    with pytest.raises(
        CheckpointError, match=f"weights of round {chosen}, which 'validation' chooses, are not"
    ):
        resumed.best_model()
    assert resumed.best_model("oracle") is not resumed.model


def test_the_model_passed_in_is_untouched(federation: Federation) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    model[0].bias.requires_grad_(False)
    model[1].eval()
    model[2].weight.grad = torch.ones_like(model[2].weight)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    result = train(federation, model, "fishr-intra-geo", rounds=2, learning_rate=0.1, environment_size=4)
    result.best_model()
    assert_same(dict(model.state_dict()), before)
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, False, True, True]
    assert torch.equal(model[2].weight.grad, torch.ones_like(model[2].weight))
    assert model[0].weight.grad is None
    assert [len(module._forward_hooks) for module in model.modules()] == hooks


def write_table(path: Path, seed: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(24, 2, generator=generator).tolist()
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
