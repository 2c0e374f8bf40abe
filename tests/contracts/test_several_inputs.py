"""Models with several inputs give the bits of the same network that takes one tensor apart."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fleets import fleet
from networks import NETWORK_ALGORITHMS, redraw
from torch import Tensor, nn

from fedilc import Federation, Silo, load, train
from fedilc.config import parse_experiment
from fedilc.data.inputs import tensors_of
from fedilc.errors import CheckpointError, ConfigError, DataError
from fedilc.studies.checking import check_experiment
from fedilc.training.loaded_model import export_model

IMAGE, AGE = 5, 2
pytestmark = pytest.mark.filterwarnings("ignore::fedilc.errors.FedILCWarning")


class TwoInputs(nn.Module):
    """An image and an age, each with a layer of its own; `scale` has no per-example rule."""

    def __init__(self, scaled: bool = False) -> None:
        super().__init__()
        self.of_image, self.of_age = nn.Linear(IMAGE, 4), nn.Linear(AGE, 4)
        self.scale = nn.Parameter(torch.ones(4)) if scaled else None
        self.classifier = nn.Linear(8, 1)

    def forward(self, image: Tensor, age: Tensor) -> Tensor:
        features = torch.tanh(self.of_image(image))
        if self.scale is not None:
            features = features * self.scale
        return self.classifier(torch.cat([features, torch.tanh(self.of_age(age))], 1))


class TakesApart(nn.Module):
    """The same network with one tensor; its layers have the same names one level down."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x[:, :IMAGE].contiguous(), x[:, IMAGE:].contiguous())


def examples(seed: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, IMAGE + AGE, generator=generator)
    return x, (x[:, 0] + x[:, -1] > 0).long()


def joined(x: Tensor) -> Any:
    return x


def named(x: Tensor) -> Any:
    return {"age": x[:, IMAGE:].contiguous(), "image": x[:, :IMAGE].contiguous()}


def ordered(x: Tensor) -> Any:
    return x[:, :IMAGE].contiguous(), x[:, IMAGE:].contiguous()


def federation(form: Any) -> Federation:
    silos = []
    for seed, count in enumerate((20, 13, 17)):
        (x, y), (x_val, y_val) = examples(seed, count), examples(seed + 50, 9)
        silos.append(Silo("abc"[seed], form(x), y, form(x_val), y_val))
    x, y = examples(99, 11)
    return Federation("f", silos, form(x), y)


def run(form: Any, algorithm: str, scaled: bool = False, **options: Any) -> Any:
    network = redraw(TwoInputs(scaled))
    network = network.double() if scaled else network  # vmap may sum in another order: not to the last bit
    model = TakesApart(network) if form is joined else network
    options = {"rounds": 2, "learning_rate": 0.1, "environment_size": 3, **options}
    return train(federation(form), model, algorithm, **options)


def assert_same(left: Any, right: Any) -> None:
    histories = (json.dumps(result.history).replace("network.", "") for result in (left, right))
    assert len(set(histories)) == 1
    values = (dict(result.model.named_parameters()).values() for result in (left, right))
    assert all(torch.equal(one, other) for one, other in zip(*values, strict=True))


@pytest.mark.parametrize("algorithm", NETWORK_ALGORITHMS)
def test_every_algorithm_gives_the_bits_of_one_tensor_taken_apart(algorithm: str) -> None:
    expected = run(joined, algorithm)
    assert_same(run(named, algorithm), expected)
    assert_same(run(ordered, algorithm), expected)


@pytest.mark.parametrize("form", [named, ordered])
@pytest.mark.parametrize("size", [1, 3])
def test_parameters_without_a_rule_go_through_vmap(form: Any, size: int) -> None:
    options = {"algorithm": "fishr-intra-geo", "scaled": True, "environment_size": size}
    pairs = (run(one, **options).model.parameters() for one in (form, joined))
    for found, expected in zip(*pairs, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("balance", ["weights", "oversample"])
def test_classes_are_balanced(balance: str) -> None:
    assert_same(run(named, "fedavg", balance=balance), run(joined, "fedavg", balance=balance))


def test_a_model_that_writes_to_its_inputs_is_given_copies() -> None:
    class Writes(TwoInputs):
        def forward(self, image: Tensor, age: Tensor) -> Tensor:
            return super().forward(image, age.mul_(2.0))

    data = federation(named)
    before = copy.deepcopy(data.silos[0].x)
    train(data, redraw(Writes()), "fishr-inter-geo", rounds=2, learning_rate=0.1)
    assert all(map(torch.equal, tensors_of(data.silos[0].x), tensors_of(before)))


@pytest.mark.parametrize("form", [named, ordered])
def test_a_trained_model_is_loaded_predicts_and_is_exported(form: Any, tmp_path: Path) -> None:
    result = run(form, "fedsgd", out=tmp_path / "run")
    loaded = load(tmp_path / "run", "last", TwoInputs())
    x, _ = examples(3, 8)
    given = form(x)
    with torch.no_grad():
        network = result.model.eval()
        logits = network(**given) if isinstance(given, dict) else network(*given)
    expected = logits.double().sigmoid().numpy()[:, 0]
    np.testing.assert_array_equal(loaded.predict_proba(given)[:, 1], expected)
    arrays = {k: v.numpy() for k, v in given.items()} if isinstance(given, dict) else given
    assert list(loaded.predict(arrays)) == [str(int(p > 0.5)) for p in expected]
    with pytest.raises(DataError, match="the model takes several inputs"):
        loaded.predict(x)
    with pytest.raises(DataError, match=r"the inputs have the shape .*\(1,\).*, but the model takes"):
        loaded.predict({k: v[:, :1] for k, v in given.items()} if isinstance(given, dict) else (x[:, :1],))
    program = torch.export.load(export_model(loaded, tmp_path / "model.pt2")[0]).module()
    exported = program(**given) if isinstance(given, dict) else program(*given)
    torch.testing.assert_close(exported, logits)


def test_a_resumed_run_is_the_uninterrupted_one_and_other_inputs_are_refused(tmp_path: Path) -> None:
    whole = run(named, "fishr-inter-geo", out=tmp_path / "whole", rounds=3)
    run(named, "fishr-inter-geo", out=tmp_path / "cut", rounds=1)
    resumed = run(named, "fishr-inter-geo", out=tmp_path / "cut", rounds=3, resume=True)
    assert_same(resumed, whole)
    with pytest.raises(CheckpointError, match="the data of silo 'a' differ from those of the run"):
        run(lambda x: named(x + 1), "fishr-inter-geo", out=tmp_path / "cut", rounds=3, resume=True)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (lambda x: {"picture": x[:, :IMAGE], "age": x[:, IMAGE:]}, "unexpected keyword argument 'picture'"),
        (lambda x: (x[:, :IMAGE],), "missing 1 required positional argument: 'age'"),
        (lambda x: (x[:, IMAGE:], x[:, :IMAGE]), r"inputs of shape 0 \(2,\), 1 \(5,\) and type"),
    ],
)
def test_inputs_that_the_model_does_not_take_are_refused_in_one_sentence(form: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(form, "fedsgd")


def test_regression_by_newton_and_built_in_networks_take_one_input() -> None:
    with pytest.raises(DataError, match="logistic takes one input per example"):
        run(named, "logistic")
    settings = {"name": "tried", "rounds": 1, "learning_rate": 0.1, "model": {"name": "mlp"}}
    data = {"source": "remote", "silos": ["a"], "inputs": {"image": [IMAGE], "age": [AGE]}}
    found = check_experiment(parse_experiment({**settings, "data": data}), Path())
    assert "model 'mlp' takes one input, but the data have several" in found.report.problems[0]


EXPERIMENT = """
algorithm = "fishr-intra-geo"
rounds = 2
learning_rate = 0.1
environment_size = 3

[data]
source = "remote"
silos = ["a", "b", "c"]
inputs = { image = [5], age = [2] }
"""
OWN = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parent.parent / "helpers")!r}]
from test_several_inputs import TwoInputs, federation, named, redraw

def build():
    return redraw(TwoInputs())

def make(name):
    return next(silo for silo in federation(named).silos if silo.name == name)
"""


def test_silos_over_http_give_the_bits_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(EXPERIMENT)
    (tmp_path / "own.py").write_text(OWN)
    with fleet(tmp_path) as processes:
        first, url = processes.serve("study.toml", "--out", "run", "--model", "own:build")
        members = [
            processes.start("join", url, "--silo", name, "--provider", "own:make", "--model", "own:build")
            for name in "abc"
        ]
        assert first.ended() == 0, first.said
        assert [member.ended() for member in members] == [0, 0, 0]
    whole = federation(named)
    expected = train(
        Federation("f", whole.silos),
        redraw(TwoInputs()),
        "fishr-intra-geo",
        rounds=2,
        learning_rate=0.1,
        environment_size=3,
    )
    loaded = load(tmp_path / "run", "last", TwoInputs())
    for one, other in zip(loaded.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(one, other)
