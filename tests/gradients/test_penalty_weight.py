"""lambda by round, and the sum of gradient and penalty gradient."""

from __future__ import annotations

import pytest
import torch

from fedilc.gradients.penalty_weight import PenaltySchedule, add_penalty


@pytest.mark.parametrize(("round_", "weight"), [(1, 0.5), (3, 0.5), (4, 7.0), (99, 7.0)])
def test_lambda_begins_after_the_rounds_of_annealing(round_: int, weight: float) -> None:
    assert PenaltySchedule(7.0, anneal_rounds=3, start=0.5).at(round_) == weight


def test_without_annealing_lambda_is_the_same_in_every_round() -> None:
    assert {PenaltySchedule(7.0).at(round_) for round_ in (1, 2, 301)} == {7.0}


def test_the_penalty_gradient_is_added_by_parameter_and_changes_neither() -> None:
    gradient, penalty = {"w": torch.tensor([1.0, 2.0]), "b": torch.zeros(1)}, {"b": torch.ones(1)}
    penalty["w"] = torch.tensor([10.0, -10.0])
    found = add_penalty(gradient, penalty, 0.5)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"w": [6.0, -3.0], "b": [0.5]}
    assert gradient["w"].tolist() == [1.0, 2.0]
