"""A silo's state belongs to a round: the newest before it is used, and two are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedilc.errors import FedILCWarning
from fedilc.federation.silo_state import SiloState


def value(state: SiloState, round_: int) -> tuple[int, float | None]:
    found, tensors = state.before(round_)
    return found, float(tensors["c"]) if tensors else None


def keep(state: SiloState, *rounds: int) -> None:
    for round_ in rounds:
        state.keep(round_, {"c": torch.tensor(float(round_))})


@pytest.mark.parametrize("folder", [True, False])
def test_the_newest_state_before_a_round_is_used(folder: bool, tmp_path: Path) -> None:
    state = SiloState("a/b", tmp_path if folder else None)
    assert value(state, 1) == (0, None)
    keep(state, 1, 2, 3)
    assert value(state, 4) == (3, 3.0)
    assert value(state, 3) == (2, 2.0)
    assert value(state, 2) == (0, None)


def test_states_are_found_again_by_another_process_of_the_same_run(tmp_path: Path) -> None:
    keep(SiloState("a", tmp_path, "run"), 4, 5)
    assert value(SiloState("a", tmp_path, "run"), 6) == (5, 5.0)
    assert value(SiloState("a", tmp_path, "run"), 5) == (4, 4.0)
    assert value(SiloState("a", tmp_path, "other"), 6) == (0, None)


def test_a_round_that_is_repeated_replaces_its_state(tmp_path: Path) -> None:
    state = SiloState("a", tmp_path)
    keep(state, 1, 2)
    state.keep(2, {"c": torch.tensor(9.0)})
    again = SiloState("a", tmp_path)
    assert value(again, 3) == (2, 9.0)
    assert value(again, 2) == (1, 1.0)


def test_a_damaged_state_is_a_warning(tmp_path: Path) -> None:
    keep(SiloState("a", tmp_path), 1, 2)
    (tmp_path / "a.safetensors").write_bytes(b"damaged")
    with pytest.warns(FedILCWarning, match="starts without this state"):
        state = SiloState("a", tmp_path)
    assert value(state, 3) == (1, 1.0)
