"""The model of the round one chose: in memory, in the run folder, after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedilc
from fedilc import Federation, Result, Silo, train
from fedilc.errors import CheckpointError, ConfigError, FedILCWarning
from fedilc.models import build_model
from fedilc.storage.files import read_tensors
from fedilc.storage.run_folder import RunFolder

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


def test_averaged_weights_are_kept_measured_and_loaded(
    federation: Federation, model: nn.Module, tmp_path: Path
) -> None:
    result = go(federation, model, out=tmp_path, average="ema")
    chosen = result.best("oracle")
    found = result.best_model("oracle")
    assert_same(weights(found), weights(go(federation, model, chosen["round"], average="ema").model))
    last = zip(weights(result.model).values(), weights(go(federation, model).model).values(), strict=True)
    assert not any(torch.equal(averaged, plain) for averaged, plain in last)
    assert federation.x_test is not None
    assert federation.y_test is not None
    with torch.no_grad():
        logits = found(federation.x_test)[:, 0]
    loss = nn.functional.binary_cross_entropy_with_logits(logits, federation.y_test)
    assert chosen["test_loss"] == pytest.approx(float(loss), rel=1e-6)
    for criterion in ("oracle", "last"):
        loaded = fedilc.load(tmp_path, criterion, model=model)
        assert_same(weights(loaded.model), weights(result.best_model(criterion)))
    assert RunFolder(tmp_path).settings()["average"] == "ema"


def test_without_validation_and_test_there_is_nothing_to_keep(
    federation: Federation, model: nn.Module, tmp_path: Path
) -> None:
    bare = Federation("bare", [Silo(silo.name, silo.x, silo.y) for silo in federation.silos])
    result = go(bare, model, out=tmp_path)
    assert not list(tmp_path.glob("best-*"))
    with pytest.raises(ConfigError, match="needs validation examples"):
        result.best_model()
    assert_same(weights(result.best_model("last")), weights(result.model))


@pytest.mark.parametrize("average", [None, "ema"])
@pytest.mark.parametrize("done", [5, ROUNDS])
def test_a_resumed_run_takes_the_best_model_from_its_folder(
    federation: Federation, model: nn.Module, tmp_path: Path, done: int, average: str | None
) -> None:
    go(federation, model, done, out=tmp_path, average=average)
    resumed = go(federation, model, out=tmp_path, resume=True, average=average)
    straight = go(federation, model, average=average)
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
