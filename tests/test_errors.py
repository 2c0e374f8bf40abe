"""Errors are of the kinds that Python users expect, and of our own."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from fedilc import Federation, Silo, algorithms, train, weighted_geometric_mean
from fedilc.errors import FedILCError, writing


def test_a_wrong_value_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="did you mean 'fedsgd'") as found:
        algorithms.get("fedsdg")
    assert isinstance(found.value, FedILCError)
    with pytest.raises(ValueError, match="rounds=0"):
        train(
            Federation("f", [Silo("a", [[0.0], [1.0]], [0, 1])]), nn.Linear(1, 1), rounds=0, learning_rate=1
        )
    with pytest.raises(ValueError, match="zeros='some' is not valid"):
        weighted_geometric_mean([1.0, 2.0], zeros="some")
    with pytest.raises(ValueError, match="silo 'a'"):
        Silo("a", [[0.0]], [0, 1])


def test_a_wrong_type_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="needs a Federation") as found:
        train([1, 2], nn.Linear(1, 1), rounds=1, learning_rate=1.0)
    assert isinstance(found.value, FedILCError | ValueError)
    with pytest.raises(TypeError, match="give an Algorithm"):
        algorithms.register("mine", "fedsgd")


def test_a_file_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(FedILCError, match="cannot be written: Is a directory"), writing(tmp_path):
        tmp_path.write_text("")
