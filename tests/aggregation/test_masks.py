"""The AND-mask with and without the division by surviving shares, and the bias of the absolute mean."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from stacks import accumulated, stacks
from torch import Tensor

from fedilc import weighted_geometric_mean
from fedilc.aggregation import AndMask
from fedilc.aggregation.mean import AbsoluteGeometricMean


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


def absolute(stack: Tensor) -> Tensor:
    return AbsoluteGeometricMean().finalize(accumulated(AbsoluteGeometricMean(), stack)).value["w"]


@given(stacks())
def test_the_absolute_mean_is_the_product_of_magnitudes_with_the_sign_of_the_mean(stack: Tensor) -> None:
    stack = stack.double().clamp(-1e30, 1e30)
    for place, column in enumerate(stack.T.tolist()):
        magnitude = math.exp(math.fsum(math.log(abs(g) or 1e-10) for g in column) / len(column))
        total = math.fsum(column)
        right = math.copysign(magnitude, total) if total else 0.0
        torch.testing.assert_close(float(absolute(stack)[place]), right, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("low", [1, 2, 5])
def test_the_absolute_mean_does_not_vanish_where_losses_balance(low: int) -> None:
    """Losses w^2/2 of `low` silos and (w - 1)^2/2 of one: the sum is least at 1/(low + 1).

    There the weighted geometric mean is 0, since its sides are low/E w and 1/E (1 - w) for w from 0 to 1.
    The absolute one jumps from -(w^low (1 - w))^(1/E) to its opposite: signs that disagree do not lower it,
    so that steps of gradient descent never become small.
    """
    count, least = low + 1, 1 / (low + 1)

    def gradients(w: float) -> Tensor:
        return torch.tensor([[w]] * low + [[w - 1]], dtype=torch.float64)

    for w in (0.05, least - 1e-9, least, least + 1e-9, 0.9):
        torch.testing.assert_close(
            float(weighted_geometric_mean(gradients(w))), w - least, rtol=1e-9, atol=1e-11
        )
    jump = (least**low * (1 - least)) ** (1 / count)
    for side in (-1, 1):
        found = float(absolute(gradients(least + side * 1e-9)))
        torch.testing.assert_close(found, side * jump, rtol=1e-6, atol=0.0)
    w, rate, path = 0.05, 0.1, []
    for _ in range(400):
        w -= rate * float(absolute(gradients(w)))
        path.append(abs(w - least))
    assert max(path[-20:]) > 0.25 * rate * jump


def test_noise_shrinks_in_the_weighted_geometric_mean_and_not_in_the_absolute_one() -> None:
    """The geometric mean of |g| of E normal values is near exp(-(gamma + log 2)/2) = 0.53 for any large E."""
    random = torch.Generator().manual_seed(0)
    limit = math.exp(-(0.5772156649 + math.log(2)) / 2)
    for count in (10, 100, 1000):
        noise = torch.randn(count, 2000, generator=random, dtype=torch.float64)
        assert float(weighted_geometric_mean(noise).square().mean().sqrt()) < 1.5 / count**0.5
        torch.testing.assert_close(float(absolute(noise).abs().mean()), limit, rtol=0.12, atol=0.0)
