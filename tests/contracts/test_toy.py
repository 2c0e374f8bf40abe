"""The paper's toy claim: slower along inconsistent directions. True of gradient descent; Adam undoes it."""

from __future__ import annotations

import math

import pytest
import torch
from benchmarks.toy import CURVATURES, path
from hypothesis import given
from hypothesis import strategies as st

curvature = st.floats(0.01, 5.0)


@given(st.lists(st.tuples(curvature, curvature), min_size=1, max_size=4))
def test_each_direction_shrinks_by_its_mean_curvature_arithmetic_or_geometric(
    pairs: list[tuple[float, float]],
) -> None:
    silos = list(zip(*pairs, strict=True))
    arithmetic, geometric = (path(silos, name, "gradient descent", 20) for name in ("fedsgd", "geometric"))
    for direction, (one, other) in enumerate(pairs):
        mean, root = (one + other) / 2, math.sqrt(one * other)
        powers = torch.arange(21, dtype=torch.float64)
        torch.testing.assert_close(arithmetic[:, direction], (1 - 0.1 * mean) ** powers)
        torch.testing.assert_close(geometric[:, direction], (1 - 0.1 * root) ** powers)


@given(curvature, st.floats(1.01, 100))
def test_the_more_two_silos_differ_in_a_direction_the_slower_it_is_and_alike_it_is_not(
    alike: float, ratio: float
) -> None:
    """The mean curvature is the same in all three directions; only how the silos share it differs."""
    shares = [(alike, alike)] + [(2 * alike * r / (1 + r), 2 * alike / (1 + r)) for r in (ratio, 2 * ratio)]
    silos = list(zip(*shares, strict=True))
    arithmetic, geometric = (path(silos, name, "gradient descent", 1)[1] for name in ("fedsgd", "geometric"))
    torch.testing.assert_close(arithmetic, arithmetic[:1].expand(3))
    assert geometric[0].item() == pytest.approx(arithmetic[0].item(), rel=1e-12)
    assert geometric[0] < geometric[1] < geometric[2]


def test_adam_which_the_paper_trains_with_takes_the_slowness_back() -> None:
    """It divides each direction's gradient by its size, so that a constant factor per direction is lost."""
    arithmetic, geometric = (path(CURVATURES, name, "Adam", 60) for name in ("fedsgd", "geometric"))
    torch.testing.assert_close(geometric, arithmetic, rtol=0, atol=1e-8)
    slow = path(CURVATURES, "geometric", "gradient descent", 60)
    assert slow[-1, 1] > 10 * slow[-1, 0]
