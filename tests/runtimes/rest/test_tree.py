"""A tree of coordinators trains what one coordinator does, to the last bit, and loses what a silo may lose."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import assert_same, flat, trained

from fedilc import algorithms
from rest import remote

SILOS = ("a", "b", "c", "d", "e")
TWO_LEVELS = {"north": flat("a", "b"), "south": flat("c", "d"), "e": None}
THREE_LEVELS = {"north": {"n1": flat("a", "b"), "n2": flat("c"), "d": None}, "e": None}


@pytest.mark.parametrize("algorithm", [*algorithms.PAPER, "fedavg"])
def test_a_tree_gives_the_bits_of_one_coordinator(algorithm: str, tmp_path: Path) -> None:
    settings = remote(SILOS, algorithm=algorithm, environment_size=4, penalty_weight=2.0, rounds=3)
    assert_same(trained(settings, TWO_LEVELS, tmp_path), trained(settings, flat(*SILOS), tmp_path))
