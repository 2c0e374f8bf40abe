"""The validator lists every problem at once, each with its fix."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedilc import Federation, Silo, train
from fedilc.errors import ModelError
from fedilc.gradients import model_problems


def test_every_module_that_cannot_be_supported_is_listed_with_its_fix() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3),
        nn.BatchNorm2d(12),
        nn.InstanceNorm2d(12, track_running_stats=True),
        nn.Embedding(5, 3, max_norm=1.0),
        nn.EmbeddingBag(5, 3, sparse=True, mode="sum"),
        nn.LSTM(3, 3),
        nn.LazyLinear(4),
    )
    found = model_problems(model, environments=True)
    fixes = [
        "GroupNorm(4, 12)",
        "track_running_stats=False",
        "max_norm=None",
        "sparse=False",
        "nn.Linear",
        "call",
    ]
    assert len(found) == len(fixes)
    for number, (problem, fix) in enumerate(zip(found, fixes, strict=True), 1):
        assert problem.startswith(f"'{number}' (")
        assert fix in problem


def test_recurrent_layers_are_a_problem_only_for_environments() -> None:
    assert model_problems(nn.LSTM(3, 3)) == []


def test_a_model_without_trainable_parameters_is_refused() -> None:
    assert "no trainable parameter" in model_problems(nn.Linear(2, 1).requires_grad_(False))[0]


@pytest.mark.parametrize("algorithm", ["fedsgd", "fishr-intra-geo"])
def test_train_refuses_batch_normalisation_and_offers_group_normalisation(algorithm: str) -> None:
    federation = Federation("f", [Silo("a", torch.zeros(3, 4), [0, 1, 0])])
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    with pytest.raises(ModelError, match=r"'1' \(BatchNorm1d\).*nn.GroupNorm\(8, 8\)"):
        train(federation, model, algorithm, rounds=1, learning_rate=0.1, environment_size=1)
