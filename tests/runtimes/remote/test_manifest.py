"""The manifest: declarative, identified by its hash, and refused where it is not within reason."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch
from torch import nn

from fedilc.errors import ConfigError, ModelError, ProtocolError
from fedilc.penalties import Fishr
from fedilc.runtimes.remote.manifest import read_manifest
from rest import queue_of, remote


def values(**changes: Any) -> dict[str, Any]:
    """A manifest as it travels, with changes; the key `model.x` is of the model."""
    found = json.loads(json.dumps(queue_of().about()["manifest"]))
    for key, value in changes.items():
        inner = found
        *path, last = key.split("__")
        for part in path:
            inner = inner[part]
        inner[last] = value
    return found


def test_a_manifest_survives_its_journey_with_its_hash() -> None:
    manifest = queue_of().manifest
    travelled = read_manifest(values())
    assert travelled == manifest
    assert travelled.hash == manifest.hash
    assert len(manifest.hash) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 4},
        {"seed": 1},
        {"algorithm": "fedcurv"},
        {"environment_size": 8},
        {"weights": "others"},
        {"silos": ["b", "a"]},
        {"choices__inter": {"name": "mean"}},
        {"wire": "float16"},
        {"columns": ["x", "y", "z"]},
    ],
    ids=str,
)
def test_whatever_changes_changes_the_hash(change: dict[str, Any]) -> None:
    assert read_manifest(values(**change)).hash != queue_of().manifest.hash


def test_a_full_batch_reaches_silos_by_name() -> None:
    queue = queue_of(remote(algorithm="fedavg", batch_size="all"))
    travelled = read_manifest(json.loads(json.dumps(queue.about()["manifest"])))
    local = travelled.choices.local
    assert local is not None
    assert local.batch(100) == 100


def test_it_holds_every_setting_that_a_silo_computes_with() -> None:
    settings = remote(
        algorithm="fishr-intra-geo", environment_size=4, zeros="strict", min_side=2, covariance="full", seed=9
    )
    task = queue_of(settings).manifest.program
    assert (task.options.environment_size, task.options.seed) == (4, 9)
    assert isinstance(task.penalty, Fishr)
    assert task.penalty.covariance == "full"
    assert task.intra is not None
    assert (task.intra.zeros, task.intra.min_side) == ("strict", 2)


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": 1},
        {"protocol": None},
        {"loss": "hinge"},
        {"more": 1},
        {"rounds": "many"},
        {"parameters": {}},
        {"parameters__w": {"shape": [2**40], "dtype": "float32"}},
        {"parameters__w": {"shape": [2**20, 2**20], "dtype": "float32"}},
        {"parameters__w": {"shape": [-1], "dtype": "float32"}},
        {"parameters__w": {"shape": [1] * 9, "dtype": "float32"}},
        {"parameters__w": {"shape": [1], "dtype": "object"}},
        {"statistic": [2**20, 2**20]},
        {"model__inputs": [2**40]},
        {"model__inputs": [0]},
        {"model__outputs": 2**40},
        {"model__sizes": {"hidden": [2**20, 2**20]}},
        {"model__sizes": {"hidden": "os.system"}},
        {"model__sizes": {"hidden": [1] * 100_000}},
        {"model__sizes": {f"s{number}": [1] for number in range(100)}},
        {"parameters": {f"p{number}": {"shape": [1], "dtype": "float32"} for number in range(20_000)}},
        {"parameters": {f"p{number}": {"shape": [2**30], "dtype": "float32"} for number in range(5)}},
        {"run": "x" * 100_000},
        {"choices__inter": "mean"},
        {"choices__inter": {"name": "x" * 1000}},
        {"choices__local": {"steps": 0}},
        {"choices__inter": None},
        {"choices": "fedsgd"},
        {"environment_size": 0},
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_manifest_beyond_reason_is_refused_before_anything_is_built(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        read_manifest(values(**change))


@pytest.mark.parametrize(
    "change",
    [{}, {"model__sizes": {"hidden": [300]}}, {"parameters__w": {"shape": [1000], "dtype": "float32"}}],
    ids=str,
)
def test_a_silo_sets_a_limit_of_its_own_on_the_network(change: dict[str, Any]) -> None:
    manifest = read_manifest(values(**change))
    if not change:
        manifest.require_at_most(1000)
        return
    with pytest.raises(ConfigError, match="`max_parameters`"):
        manifest.require_at_most(1000)


@pytest.mark.parametrize("found", [None, [], 3, "x"])
def test_what_is_no_object_is_no_manifest(found: Any) -> None:
    with pytest.raises(ProtocolError):
        read_manifest(found)


@pytest.mark.parametrize("name", ["os:system", "../../evil", "torch.nn.Linear", "__import__"])
def test_a_network_is_looked_up_and_nothing_is_imported_for_it(name: str) -> None:
    before = set(sys.modules)
    manifest = read_manifest(values(model__name=name))
    with pytest.raises(ConfigError, match="unknown"):
        manifest.model.build()
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ({"name": "os:system"}, "aggregation 'os:system' is unknown"),
        ({"name": "geometric", "agreement": float("nan")}, "agreement=nan is not valid"),
        ({"name": "geometric", "min_side": 0}, "min_side=0 is not valid"),
        ({"name": "geometric", "alpha": 1}, "aggregation 'geometric' has no option 'alpha'"),
    ],
    ids=str,
)
def test_a_part_is_looked_up_and_checks_its_options_and_nothing_is_imported_for_it(
    part: dict[str, Any], sentence: str
) -> None:
    received = values(choices__intra=part)
    before = set(sys.modules)
    with pytest.raises(ConfigError, match=sentence):
        read_manifest(received)
    assert set(sys.modules) == before


def network(width: int = 4, **changes: nn.Module) -> nn.Module:
    layers = {"0": nn.Flatten(), "1": nn.Linear(3, width), "2": nn.ReLU(), "3": nn.Linear(width, 1)}
    model = nn.Sequential()
    for name, layer in (layers | changes).items():
        model.add_module(name, layer)
    return model


def test_a_network_of_the_same_parameters_fits() -> None:
    queue_of().manifest.require_fits(network())


def test_another_network_is_one_sentence() -> None:
    manifest = queue_of().manifest
    for model, said in (
        (network(5), "shape"),
        (network().double(), "float64"),
        (network(more=nn.Linear(1, 1)), "the run has no parameter 'more.bias'"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3, 4)), "lacks the parameter"),
    ):
        with pytest.raises(ModelError, match=said):
            manifest.require_fits(model)


def test_buffers_and_frozen_parameters_must_be_the_coordinators() -> None:
    """They do not travel: a silo that computed with others would do so unnoticed."""
    model = network()
    model.register_buffer("table", torch.ones(2))
    with pytest.raises(ModelError, match="buffers or frozen"):
        queue_of().manifest.require_fits(model)
    frozen = network(first=nn.Linear(3, 3))
    for parameter in frozen.get_submodule("first").parameters():
        parameter.requires_grad = False
    with pytest.raises(ModelError, match="buffers or frozen"):
        queue_of().manifest.require_fits(frozen)


def test_a_network_that_is_not_built_in_must_be_brought() -> None:
    with pytest.raises(ConfigError, match="`model=my_module:build`"):
        read_manifest(values(model__name=None)).model.build()


def test_a_manifest_that_is_nested_too_deeply_is_one_sentence() -> None:
    with pytest.raises(ProtocolError, match="manifest is not JSON: it is nested too deeply"):
        read_manifest("[" * 100_000)
