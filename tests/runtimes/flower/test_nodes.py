"""Rounds over nodes in this process: who is asked, who is lost, and that the bits are those of `local`."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from clinics import SETTINGS, make_model, make_silo

from fedilc import Silo
from fedilc.runtimes.flower import FedILC

near = pytest.importorskip("near", reason="Flower is not installed: pip install 'fedilc[flower]'")
ALL = ["clinic-0", "clinic-1", "clinic-2"]


@pytest.mark.parametrize(
    ("old", "present"),
    [("silent", [ALL, ["clinic-0", "clinic-2"], ALL]), ("gone", [ALL, ALL, ALL])],
)
def test_a_node_that_was_started_again_under_another_number_takes_its_place(
    old: str, present: list[list[str]]
) -> None:
    """The old one is still listed at first: either it does not answer any more, or it leaves the list."""
    grid = near.grid_of(3)

    def restarted(number: int, _: Any) -> None:
        if number == 1:
            grid.configs[105] = dict(grid.configs[101])
        if (number, old) in ((1, "silent"), (2, "gone")):
            getattr(grid, old).add(101)

    strategy = FedILC(model=make_model(), min_silos=2, **SETTINGS)
    result = strategy.start(grid, num_rounds=3, timeout=2, evaluate_fn=restarted)
    assert [list(record["silos"]) for record in result.history] == present
    assert {node for node, _ in grid.sent[-6:]} == {100, 102, 105}


def test_a_node_whose_first_answer_was_lost_is_asked_again() -> None:
    grid = near.grid_of(2)
    answered, failed = grid.answered, []

    def at_first_lost(node: int, message: Any) -> Any:
        if node == 101 and len(failed) < 2:
            failed.append(node)
            return grid.unavailable(message)
        return answered(node, message)

    grid.answered = at_first_lost
    result = FedILC("fedsgd", model=make_model(), **SETTINGS).start(grid, num_rounds=1, timeout=20)
    assert len(result.history[0]["silos"]) == 2


def test_a_node_with_anothers_partition_does_not_end_the_wait_for_the_missing_one() -> None:
    grid = near.grid_of(3)
    late = grid.configs.pop(102)
    grid.configs[103] = dict(grid.configs[101])
    listed, calls = grid.get_node_ids, []

    def comes_late() -> list[int]:
        calls.append(1)
        if len(calls) == 3:
            grid.configs[102] = late
        return listed()

    grid.get_node_ids = comes_late
    result = FedILC("fedsgd", model=make_model(), **SETTINGS).start(grid, num_rounds=1, timeout=20)
    assert list(result.history[0]["silos"]) == ALL


def test_another_silo_does_not_stand_in_under_the_same_number() -> None:
    def own_of_each_node(partition_id: int) -> Silo:
        silo = make_silo(partition_id)
        return Silo("other", silo.x[:4], silo.y[:4]) if grid.now == 103 else silo

    grid = near.grid_of(2, own_of_each_node)
    grid.configs[103] = dict(grid.configs[101])
    answered = grid.answered

    def watched(node: int, message: Any) -> Any:
        grid.now = node
        return answered(node, message)

    grid.answered = watched
    strategy = FedILC("fedsgd", model=make_model(), min_silos=1, **SETTINGS)

    def go_silent(_: int, __: Any) -> None:
        grid.silent.add(101)

    result = strategy.start(grid, num_rounds=2, timeout=1.5, evaluate_fn=go_silent)
    assert [list(record["silos"]) for record in result.history] == [["clinic-0"], ["clinic-0"]]


def test_two_nodes_of_one_partition_are_not_both_asked(caplog: pytest.LogCaptureFixture) -> None:
    grid = near.grid_of(3)
    grid.configs[102]["partition-id"] = 1
    strategy = FedILC("fedsgd", model=make_model(), num_silos=2, **SETTINGS)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(grid, num_rounds=1, timeout=10)
    assert list(result.history[0]["silos"]) == ["clinic-0", "clinic-1"]
    assert "partition-id 1 already belongs to node 101" in caplog.text
