"""Limits, thousands separators and decimal commas are numbers if the column shows that they are."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedilc.data.tables.column_values import column_values, plain_numbers


def values_of(cells: list[str]) -> list[float | str | None]:
    return column_values(pl.Series("c", cells), numbers="likely")[1].to_list()


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["<5", "7.5", "8", "na"], [5.0, 7.5, 8.0, None]),
        (["> 89", "70", "60"], [89.0, 70.0, 60.0]),
        (["≤0,5", "0,7", "1,25"], [0.5, 0.7, 1.25]),
        (["1,234.50", "12", "1,234"], [1234.5, 12.0, 1234.0]),
        (["1,234", "0.5"], [1234.0, 0.5]),
        (["1,234,567", "1,234"], [1234567.0, 1234.0]),
        (["1.234,50", "1.234", "12"], [1234.5, 1234.0, 12.0]),
        (["0,123", "1,234"], [0.123, 1.234]),
        (["-0,5", "+1,5"], [-0.5, 1.5]),
    ],
)
def test_numbers_written_otherwise_are_numbers(cells: list[str], expected: list[float | None]) -> None:
    assert values_of(cells) == expected


@pytest.mark.parametrize(
    "cells",
    [
        ["<18", "18-64", ">64"],
        ["<50", ">=50", "<50"],
        ["1,234", "850"],
        ["1,234.5", "1,5"],
        ["1,5", "1.234"],
        ["Smith, J", "Doe, A"],
        ["1,2", "a", "b"],
    ],
)
def test_what_may_be_a_name_or_another_number_remains_text(cells: list[str]) -> None:
    assert [isinstance(value, str) for value in values_of(cells)] == [True] * len(cells)


@given(st.lists(st.decimals(-99999, 99999, places=2), min_size=1))
def test_a_column_reads_the_same_with_and_without_separators(numbers: list[object]) -> None:
    column = pl.Series([f"{number:,}" for number in numbers], dtype=pl.String)
    assert plain_numbers(column).cast(pl.Float64).to_list() == [float(number) for number in numbers]  # type: ignore[arg-type]
