"""Sums and squares are exact."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedilc.data.tables.exact_moments import exact_squares, exact_sum


@given(st.lists(st.floats(-3e38, 3e38), max_size=40))
def test_sums_and_squares_are_exact(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    assert exact_sum(array) == sum((Fraction(v) for v in values), Fraction(0))
    wanted = sum((Fraction(v) ** 2 for v in values), Fraction(0))
    assert abs(exact_squares(array) - wanted) <= len(values) * Fraction(2) ** -950
