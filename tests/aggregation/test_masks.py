"""The AND-mask with and without the division by the share of coordinates that survive."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from stacks import accumulated, stacks
from torch import Tensor

from fedilc.aggregation import AndMask


@pytest.mark.parametrize("agreement", [0.5, 1.0])
@given(stacks())
def test_without_rescaling_it_is_the_masked_mean_of_the_paper(agreement: float, stack: Tensor) -> None:
    stack = stack.double().clamp(-1e30, 1e30)
    found = AndMask(agreement, rescale=False).finalize(accumulated(AndMask(agreement), stack)).value["w"]
    exact = torch.tensor([math.fsum(column) / len(stack) for column in stack.T.tolist()], dtype=torch.float64)
    kept = stack.sign().mean(0).abs() >= agreement
    torch.testing.assert_close(found, torch.where(kept, exact, 0.0))


def test_with_rescaling_it_is_divided_by_the_share_that_survives() -> None:
    stack = torch.tensor([[1.0, 1.0, 2.0, -3.0], [3.0, -1.0, 2.0, -1.0]])
    found = AndMask().finalize(accumulated(AndMask(), stack)).value["w"]
    torch.testing.assert_close(found, torch.tensor([2.0, 0.0, 2.0, -2.0]) / 0.75)
