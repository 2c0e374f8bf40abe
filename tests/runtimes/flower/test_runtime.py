"""Rounds over nodes in this process: who is asked, who is lost, who comes back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clinics import SETTINGS, locally, make_model, same

from fedilc.errors import SilosLostError
from fedilc.runtimes.flower import FedILC

near = pytest.importorskip("near", reason="Flower is not installed: pip install 'fedilc[flower]'")


def test_a_lost_node_is_named_and_the_round_is_asked_again_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = near.grid_of(3)
    lost_after_first = _killing(grid, node=101, round_=2)
    strategy = FedILC(model=make_model(), min_silos=2, **SETTINGS)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(grid, num_rounds=3, timeout=10, evaluate_fn=lost_after_first)
    assert [list(record["silos"]) for record in result.history] == [
        ["clinic-0", "clinic-1", "clinic-2"],
        ["clinic-0", "clinic-2"],
        ["clinic-0", "clinic-2"],
    ]
    assert "silo 'clinic-1' is lost to round 2" in caplog.text
    assert "Node Unavailable" in caplog.text


def _killing(grid: Any, node: int, round_: int) -> Callable[..., None]:
    """A node that dies after the roll was called for a round: it is listed, and its messages fail."""
    listed = grid.get_node_ids
    calls: list[int] = []

    def still_listed() -> list[int]:
        found = listed()
        return sorted({*found, node}) if len(calls) == round_ else found

    grid.get_node_ids = still_listed

    def after(number: int, _: Any) -> None:
        calls.append(number)
        if number == round_ - 1:
            grid.gone.add(node)

    return after


def test_without_enough_silos_the_run_ends_with_a_sentence_and_goes_on_later(tmp_path: Path) -> None:
    grid = near.grid_of(3)
    strategy = FedILC(model=make_model(), **SETTINGS)
    stop = _killing(grid, node=102, round_=3)
    with pytest.raises(SilosLostError, match="round 3 lost clinic-2, which leaves 2 of 3 silos"):
        strategy.start(grid, num_rounds=4, timeout=10, evaluate_fn=stop, out=tmp_path / "run")
    again = strategy.start(near.grid_of(3), num_rounds=4, timeout=10, out=tmp_path / "run")
    assert [record["round"] for record in again.history] == [1, 2, 3, 4]
    assert same(again.weights, locally(3, 4))


def test_a_node_that_comes_back_takes_part_again() -> None:
    grid = near.grid_of(3)

    def come_and_go(number: int, _: Any) -> None:
        grid.gone = {102} if number == 1 else set()

    strategy = FedILC("fedsgd", model=make_model(), min_silos=2, **SETTINGS)
    result = strategy.start(grid, num_rounds=3, timeout=10, evaluate_fn=come_and_go)
    assert [len(record["silos"]) for record in result.history] == [3, 2, 3]


@pytest.mark.parametrize("algorithm", ["fedsgd", "fishr-inter-geo"])
def test_a_silo_that_fails_three_times_is_set_aside(caplog: pytest.LogCaptureFixture, algorithm: str) -> None:
    grid = near.grid_of(3)
    grid.raising[101] = 99
    strategy = FedILC(algorithm, model=make_model(), min_silos=2, evaluate_every=9, **SETTINGS)
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy.start(grid, num_rounds=6, timeout=10)
    step = "update" if algorithm == "fedsgd" else "matched-update"
    assert grid.sent.count((101, step)) == 3
    assert "RuntimeError: out of memory" in caplog.text
    assert "silo 'clinic-1' failed 3 times and is set aside" in caplog.text


def test_a_silo_that_was_set_aside_takes_part_again_once_its_node_was_started_again() -> None:
    grid = near.grid_of(3)
    grid.raising[101] = 3

    def restart(number: int, _: Any) -> None:
        grid.gone = {101} if number == 4 else set()

    strategy = FedILC("fedsgd", model=make_model(), min_silos=2, **SETTINGS)
    result = strategy.start(grid, num_rounds=6, timeout=10, evaluate_fn=restart)
    assert [len(record["silos"]) for record in result.history] == [2, 2, 2, 2, 2, 3]
