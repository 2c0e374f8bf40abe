"""c is the mean of the silos' control variates; a silo's state belongs to a round, and two are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedilc.errors import FedILCWarning
from fedilc.federation.control_variates import ControlVariates, SiloState, StateMismatchError

W = {"w": torch.zeros(2)}


def answers(**rounds: int) -> dict[str, dict[str, int]]:
    return {silo: {"state_round": round_} for silo, round_ in rounds.items()}


def test_c_moves_by_the_share_of_silos_that_replied() -> None:
    control = ControlVariates(W)
    control.learn(1, {"w": torch.tensor([4.0, 8.0])}, answers(a=0, b=0), silos=4)
    assert control.tensors["w"].tolist() == [2.0, 4.0]
    control.require_matching(answers(a=1, b=1, c=0))


def test_another_state_than_that_in_c_is_named_and_all_start_again() -> None:
    control = ControlVariates(W)
    control.learn(1, {"w": torch.ones(2)}, answers(a=0), silos=1)
    with pytest.raises(StateMismatchError, match=r"silo 'a' .*used no state instead of its state of round 1"):
        control.require_matching(answers(a=0))
    with pytest.warns(FedILCWarning, match="all silos start again without state"):
        control.reset(5, "silo 'a'")
    assert control.since == 5
    assert control.tensors["w"].tolist() == [0.0, 0.0]
    control.require_matching(answers(a=0))


def test_a_checkpoint_restores_it() -> None:
    control, other = ControlVariates(W), ControlVariates(W)
    control.learn(3, {"w": torch.ones(2)}, answers(a=0), silos=1)
    other.restore(control.tensors, control.facts())
    assert (other.rounds, other.since) == ({"a": 3}, 0)
    assert torch.equal(other.tensors["w"], control.tensors["w"])


def test_an_algorithm_without_control_variates_has_no_state() -> None:
    control = ControlVariates({})
    control.require_matching({"a": {}})
    control.learn(1, {}, {"a": {}}, silos=1)
    assert control.rounds == {}


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
    assert state.before(4, since=3)[0] == 3
    assert state.before(4, since=4) == (0, {})


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
