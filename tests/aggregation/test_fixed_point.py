"""Logarithms and powers of two against arithmetic of 40 digits."""

from __future__ import annotations

import mpmath
import pytest
import torch
from stacks import every_exponent

from fedilc.aggregation.signed_logs import NARROW, WIDE, FixedPoint, exp2, fixed_log2


@pytest.mark.parametrize("kind", [NARROW, WIDE], ids=["float32", "float64"])
def test_logarithms_are_right_to_one_unit(kind: FixedPoint, generator: torch.Generator) -> None:

    values = every_exponent(generator)[::97].double()
    if kind is WIDE:
        values = torch.cat([values, values**7, torch.tensor([5e-324, 1.7e308], dtype=torch.float64)])
        values = values[values.isfinite()]
    values = values[values != 0]
    with mpmath.workdps(40):
        for value, found in zip(values.tolist(), fixed_log2(values, kind).tolist(), strict=True):
            assert abs(mpmath.log(abs(value), 2) * 2**kind.fraction - found) < 0.6


def test_powers_of_two_are_right_to_one_part_in_two_to_the_44(generator: torch.Generator) -> None:
    exponents = (torch.rand(500, generator=generator, dtype=torch.float64) - 0.5) * 2000
    with mpmath.workdps(40):
        for exponent, found in zip(exponents.tolist(), exp2(exponents).tolist(), strict=True):
            assert abs(found / mpmath.power(2, exponent) - 1) < 2.0**-43


def test_powers_of_whole_numbers_are_exact_and_what_overflows_is_the_largest_number() -> None:
    exponents = torch.tensor([-1074.0, -1022.0, 0.0, 1.0, 1023.0, 1024.0], dtype=torch.float64)
    largest = torch.finfo(torch.float64).max
    assert exp2(exponents).tolist() == [5e-324, 2.0**-1022, 1.0, 2.0, 2.0**1023, largest]
