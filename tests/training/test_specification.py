"""A model that cannot take the inputs is refused in one sentence before the first round."""

from __future__ import annotations

import pytest
import torch
from small_silos import QUICK, silo
from torch import nn

from fedilc import Federation, Silo, train
from fedilc.errors import ConfigError


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, age: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + age


def test_a_model_with_two_inputs_that_is_given_one_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"give a dict with the names of forward.*'s inputs, or a tuple"):
        train(Federation("f", [silo("a", 1)]), TwoInputs(), **QUICK)


class Raises(TwoInputs):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("age")


def test_whatever_a_network_raises_on_its_inputs_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"inputs of shape \(3,\) .*: it raised KeyError \('age'\)"):
        train(Federation("f", [silo("a", 1)]), Raises(), **QUICK)


def test_images_with_channels_last_are_told_so() -> None:
    from fedilc.models import build_model

    with pytest.raises(
        ConfigError, match=r"not \(32, 32, 3\): their channels come last, so give x.transpose"
    ):
        build_model("cnn", (32, 32, 3), 10, 0)
    silos = [Silo("a", torch.rand(4, 16, 16, 3), [0, 1, 0, 1])]
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 14 * 14, 1))
    with pytest.raises(ConfigError, match="their channels seem to come last"):
        train(Federation("f", silos), model, **QUICK)
