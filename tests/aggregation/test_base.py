"""What is not finite is found, whatever it is and wherever."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedilc.aggregation.base import is_finite


@given(st.lists(st.floats(width=32), max_size=20))
def test_finite_is_what_every_value_is(values: list[float]) -> None:
    tensor = torch.tensor(values)
    assert is_finite(tensor) == bool(torch.isfinite(tensor).all())


@pytest.mark.parametrize("place", range(0, 1000, 37))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_value_that_is_not_finite_is_found_wherever_it_is(place: int, value: float) -> None:
    tensor = torch.ones(1000)
    tensor[place] = value
    assert not is_finite(tensor)
