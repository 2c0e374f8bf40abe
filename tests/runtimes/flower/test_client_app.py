"""A node's side: its silo, its network, and what it says if they cannot be made."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from clinics import SETTINGS, locally, make_model, make_silo, same
from torch import nn

from fedilc import Silo
from fedilc.errors import SilosLostError
from fedilc.runtimes.flower import FedILC, make_client_app
from fedilc.runtimes.flower.client_app import kept_clients

near = pytest.importorskip("near", reason="Flower is not installed: pip install 'fedilc[flower]'")


def test_a_new_process_for_each_message_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = near.grid_of(3)
    push = grid.push_messages

    def forgetful(messages: Any) -> list[str]:
        kept_clients.clear()
        return push(messages)

    monkeypatch.setattr(grid, "push_messages", forgetful)
    result = FedILC(model=make_model(), **SETTINGS).start(grid, num_rounds=3, timeout=10)
    assert same(result.weights, locally(3, 3))


def test_a_silo_that_cannot_be_made_says_why_to_the_server() -> None:
    def broken(partition_id: int) -> Silo:
        if partition_id == 1:
            raise FileNotFoundError("patients.csv")
        return make_silo(partition_id)

    with pytest.raises(
        SilosLostError, match=r"2 of 3 silos are there: make_silo failed: FileNotFoundError: pat"
    ):
        FedILC(model=make_model(), **SETTINGS).start(near.grid_of(3, broken), timeout=30)


def test_a_node_may_name_a_make_silo_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wards.py").write_text(
        "from fedilc import Silo\n"
        "def ward(partition_id, seed):\n"
        "    x = [[float(partition_id + seed)] * 5, [1.0] * 5]\n"
        "    return Silo(f'ward-{partition_id}-{seed}', x, [0, 1])\n"
    )
    monkeypatch.chdir(tmp_path)
    grid = near.grid_of(2, **{"make-silo": "wards:ward"})
    result = FedILC("fedsgd", model=make_model(), seed=4, **SETTINGS).start(grid, num_rounds=1, timeout=10)
    assert list(result.history[0]["silos"]) == ["ward-0-4", "ward-1-4"]


def test_a_node_without_partition_id_is_told_what_to_do() -> None:
    grid = near.grid_of(2)
    del grid.configs[101]["partition-id"]
    with pytest.raises(SilosLostError, match="this node has no partition-id; start it with --node-config"):
        FedILC(model=make_model(), num_silos=2).start(grid, timeout=10)


def test_a_network_that_is_not_the_runs_is_refused_by_the_silo(caplog: pytest.LogCaptureFixture) -> None:
    grid = near.NearGrid(make_client_app(make_silo, lambda: nn.Linear(5, 1)), 2)
    with caplog.at_level(logging.WARNING, "flwr"), pytest.raises(SilosLostError):
        FedILC("fedsgd", model=make_model()).start(grid, timeout=10)
    assert "use the network that this run was started with" in caplog.text
