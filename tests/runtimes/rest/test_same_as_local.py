"""Five silos in five processes train what one process does, to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedilc import algorithms
from rest import as_options, assert_same_run, fleet, run_locally

CHANGES = ["rounds=10", "model.hidden=[16]", "environment_size=32", "penalty=5", "learning_rate=0.01"]


@pytest.mark.parametrize("algorithm", algorithms)
def test_rest_gives_the_bits_of_local(algorithm: str, tmp_path: Path) -> None:
    changes = [*CHANGES, f"algorithm={algorithm}"]
    silos = run_locally(changes, tmp_path / "local")
    assert len(silos) == 5
    with fleet(tmp_path) as processes:
        coordinator, url = processes.serve("color-digits", *as_options(changes), "--out", tmp_path / "rest")
        members = [
            processes.start("join", url, "--silo", name, "--experiment", "color-digits") for name in silos
        ]
        assert coordinator.ended() == 0, coordinator.said
        assert [member.ended() for member in members] == [0] * 5
        assert all("the run is over: complete" in member.said for member in members)
    assert_same_run(tmp_path / "local", tmp_path / "rest")
