"""c is the mean of the silos' control variates, and starts again if a silo used another state."""

from __future__ import annotations

import pytest
import torch

from fedilc.errors import FedILCWarning
from fedilc.federation.control_variates import ControlVariates, StateMismatchError

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
    with pytest.raises(StateMismatchError, match=r"silo 'a' .*state of round 1 and used none"):
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
