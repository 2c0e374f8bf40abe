"""A silo's client fits the manifest, or is refused before anything is computed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedilc import Silo
from fedilc.errors import ConfigError, DataError, ModelError, ProtocolError
from fedilc.runtimes.remote.client import make_client
from fedilc.runtimes.remote.manifest import Manifest
from rest import queue_of


@pytest.fixture
def manifest() -> Manifest:
    return queue_of().manifest


def silo(columns: int = 3, labels: tuple[int, ...] = (0, 1, 0, 1)) -> Silo:
    return Silo("a", torch.zeros(len(labels), columns), list(labels))


def test_a_silo_that_fits_gets_the_network_of_the_manifest(manifest: Manifest) -> None:
    client = make_client(manifest, "a", lambda _: silo(), device="cpu")
    assert client.weights.keys() == manifest.like.keys()


def test_inputs_of_another_shape_are_refused(manifest: Manifest) -> None:
    with pytest.raises(ConfigError, match=r"has inputs of shape \[7\] and the run takes \[3\]"):
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
