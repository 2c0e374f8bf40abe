"""An exchange ends in time, whatever happens to single replies."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from clinics import SETTINGS, make_model

from fedilc.errors import SilosLostError
from fedilc.runtimes.flower import FedILC

near = pytest.importorskip("near", reason="Flower is not installed: pip install 'fedilc[flower]'")


def test_a_silent_node_is_waited_for_no_longer_than_the_timeout() -> None:
    grid = near.grid_of(3)
    strategy = FedILC("fedsgd", model=make_model(), min_silos=2, evaluate_every=9, **SETTINGS)

    def silence(number: int, _: Any) -> None:
        if number == 1:
            grid.silent.add(100)

    began = time.monotonic()
    result = strategy.start(grid, num_rounds=2, timeout=1.5, evaluate_fn=silence)
    assert list(result.history[1]["silos"]) == ["clinic-1", "clinic-2"]
    assert 1.5 <= time.monotonic() - began < 15


def test_a_reply_that_never_arrives_whole_does_not_hold_up_the_run() -> None:
    grid = near.grid_of(2)
    strategy = FedILC("fedsgd", model=make_model(), **SETTINGS)

    def stall(_: int, __: Any) -> None:
        grid.pull_messages = lambda _: time.sleep(60)

    began = time.monotonic()
    with pytest.raises(SilosLostError, match="round 1 lost clinic-0, clinic-1"):
        strategy.start(grid, num_rounds=1, timeout=1.5, evaluate_fn=stall)
    assert time.monotonic() - began < 30


def test_a_reply_that_never_arrives_whole_does_not_lose_the_others() -> None:
    grid = near.grid_of(3)
    pull, stuck = grid.pull_messages, threading.Event()

    def stall(number: int, _: Any) -> None:
        mine = [name for name, reply in grid.replies.items() if reply.metadata.src_node_id == 101]
        assert number or not mine
        grid.slow = 101

    def slowly(names: Any) -> list[Any]:
        (name,) = names
        reply = grid.replies.get(name)
        if reply is not None and reply.metadata.src_node_id == getattr(grid, "slow", None):
            stuck.wait(60)
        return pull([name])

    grid.pull_messages = slowly
    strategy = FedILC("fedsgd", model=make_model(), min_silos=2, **SETTINGS)
    result = strategy.start(grid, num_rounds=1, timeout=1.5, evaluate_fn=stall)
    stuck.set()
    assert [list(record["silos"]) for record in result.history] == [["clinic-0", "clinic-2"]]
