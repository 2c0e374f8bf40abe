"""Five silos in five processes train what one process does, to the last bit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from fleets import as_options, assert_same_run, fleet, outcome_of, run_locally
from worked_examples import OWN_ALGORITHM, OWN_PENALTY

from fedilc import algorithms

CHANGES = ["rounds=10", "model.hidden=[16]", "environment_size=32", "penalty_weight=5", "learning_rate=0.01"]


@pytest.mark.parametrize(
    ("algorithm", "weights"), [*((n, "equal") for n in algorithms.PAPER), ("fedcurv", "examples")]
)
def test_rest_gives_the_bits_of_local(algorithm: str, weights: str, tmp_path: Path) -> None:
    changes = [*CHANGES, f"algorithm={algorithm}", f"weights={weights}"]
    silos = run_locally(changes, tmp_path / "local")
    assert len(silos) == 5
    run_over_http(silos, changes, tmp_path)
    assert_same_run(tmp_path / "local", tmp_path / "rest")


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "group-dro", OWN_ALGORITHM, OWN_PENALTY])
def test_so_it_does_with_local_steps_silo_state_adaptive_weights_and_parts_of_ones_own(
    algorithm: str, tmp_path: Path
) -> None:
    changes = ["rounds=4", "model.hidden=[8]", "penalty_weight=0.1", f"algorithm={algorithm}"]
    silos = run_locally(changes, tmp_path / "local")
    run_over_http(silos, changes, tmp_path)
    assert_same_run(tmp_path / "local", tmp_path / "rest")


def test_halves_on_the_wire_train_nearly_what_local_does(tmp_path: Path) -> None:
    silos = run_locally(CHANGES, tmp_path / "local")
    run_over_http(silos, CHANGES, tmp_path, "--wire", "float16")
    (exact, _), (halved, _) = outcome_of(tmp_path / "local"), outcome_of(tmp_path / "rest")
    assert len(exact) == len(halved) == 10
    assert exact != halved
    for one, other in zip(map(json.loads, exact), map(json.loads, halved), strict=True):
        for loss in ("train_loss", "validation_loss", "test_loss"):
            assert other[loss] == pytest.approx(one[loss], rel=5e-3)


def run_over_http(silos: Sequence[str], changes: list[str], folder: Path, *options: str) -> None:
    """A coordinator and a process for each silo; the run folder is `rest`."""
    with fleet(folder) as processes:
        given = [*as_options(changes), *options]
        coordinator, url = processes.serve("color-digits", *given, "--out", folder / "rest")
        members = [
            processes.start("join", url, "--silo", name, "--experiment", "color-digits") for name in silos
        ]
        assert coordinator.ended() == 0, coordinator.said
        assert [member.ended() for member in members] == [0] * len(silos)
        assert all("the run is over: complete" in member.said for member in members)
