"""A silo's client fits the manifest or is refused; its files are those that its user names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from fedilc.data import Silo
from fedilc.data.sources import Files
from fedilc.errors import ConfigError, DataError, FedILCWarning, ModelError, ProtocolError
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.silo_client import make_client, silo_from_file
from rest import queue_of


def table(folder: Path, **more: object) -> Path:
    random = np.random.default_rng(0)
    columns = {"age": random.integers(20, 90, 40), "dose": random.normal(size=40), "label": np.arange(40) % 2}
    pl.DataFrame(columns | more).write_csv(folder / "own.csv")
    return folder / "own.csv"


def joined(name: str, path: Path) -> Silo:
    manifest: Any = SimpleNamespace(columns=["age", "dose"], seed=3, loss="binary", preprocessing=None)
    return silo_from_file(name, path, "label", 0.3, lambda _: None)(manifest)


def test_the_split_of_a_silo_that_joins_is_that_of_a_run_here_whatever_its_name(tmp_path: Path) -> None:
    path = table(tmp_path)
    here = Files(silos="own.csv").store(3, tmp_path).open("own")
    for name in ("own", "north"):
        there = joined(name, path)
        assert there.x_val is not None
        assert here.x_val is not None
        assert there.x_val.tolist() == here.x_val.tolist()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"age": [-99] * 4 + list(range(20, 56))}, "-99 probably means a missing value in column 'age'"),
        ({"age": list(range(40))}, "column 'age' differs in every row"),
        ({"label": [1] * 40}, r"silo 'north' \(label 1\) has training examples of one class only"),
    ],
    ids=["code", "identifier", "one class"],
)
def test_a_silo_that_joins_is_told_what_is_odd_about_its_file(
    tmp_path: Path, more: dict[str, object], said: str
) -> None:
    with pytest.warns(FedILCWarning, match=said):
        joined("north", table(tmp_path, **more))


@pytest.fixture
def manifest() -> Manifest:
    return queue_of().manifest


def silo(columns: int = 3, labels: tuple[int, ...] = (0, 1, 0, 1)) -> Silo:
    return Silo("a", torch.zeros(len(labels), columns), list(labels))


def test_a_silo_that_fits_gets_the_network_of_the_manifest(manifest: Manifest) -> None:
    client = make_client(manifest, "a", lambda _: silo(), device="cpu")
    assert client.weights.keys() == manifest.like.keys()


def test_inputs_of_another_shape_are_refused(manifest: Manifest) -> None:
    with pytest.raises(ConfigError, match=r"has inputs of shape \[7\], but the run takes \[3\]"):
        make_client(manifest, "a", lambda _: silo(7), device="cpu")


def test_labels_of_another_task_are_refused(manifest: Manifest) -> None:
    with pytest.raises(DataError):
        make_client(manifest, "a", lambda _: silo(labels=(0, 1, 2, 5)), device="cpu")


def test_another_network_is_refused(manifest: Manifest) -> None:
    with pytest.raises(ModelError, match="use the network that this run was started with"):
        make_client(manifest, "a", lambda _: silo(), lambda _: nn.Linear(3, 1), device="cpu")


def test_other_steps_than_those_of_this_installation_are_refused(manifest: Manifest) -> None:
    other = manifest.model_copy(update={"steps": manifest.steps | {"more": {}}})
    with pytest.raises(ProtocolError, match="differ from those of this installation"):
        make_client(other, "a", lambda _: silo(), device="cpu")
