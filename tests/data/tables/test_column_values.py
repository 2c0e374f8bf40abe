"""Cells become numbers, names or missing values, however they are written."""

from __future__ import annotations

import datetime

import polars as pl
import pytest

from fedilc.data.tables.column_values import column_values, names_of, numbers_of


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["61", "?", " 58.5 ", "+2"], "number", [61.0, None, 58.5, 2.0]),
        (["1", "unknown", "NA"], "number", [1.0, None, None]),
        (["a", "", "unknown"], "text", ["a", None, "unknown"]),
        (["", "na", "?"], "empty", [None, None, None]),
        (["2024-01-31", "31.1.24"], "date", ["2024-01-31", "31.1.24"]),
        ([1, None, 3], "number", [1.0, None, 3.0]),
        ([True, False], "number", [1.0, 0.0]),
        ([1.0, float("nan"), float("inf"), 1e39], "number", [1.0, None, None, None]),
        ([datetime.date(2024, 1, 31)], "date", [None]),
        ([[1], [2]], "other", [None, None]),
    ],
)
def test_the_kind_and_the_values_of_a_column_are_found(cells: list, kind: str, values: list) -> None:
    found, series = column_values(pl.Series("c", cells))
    assert (found, series.to_list()) == (kind, values)


def test_further_marks_of_missing_values_may_be_for_one_column_alone() -> None:
    column = pl.Series("chol", [0, 5, -9])
    assert column_values(column, ["-9", "chol=0"])[1].to_list() == [None, 5.0, None]
    assert column_values(column, ["age=0"])[1].to_list() == [0.0, 5.0, -9.0]
    assert column_values(column, ["-9.0"])[1].to_list() == [0.0, 5.0, None]
    assert column_values(column, ["chol=0,-9"])[1].to_list() == [None, 5.0, None]
    assert column_values(column, ["age=0,-9"])[1].to_list() == [0.0, 5.0, -9.0]
    words = pl.Series("ward", ["Refused", "a", "b"])
    assert column_values(words, ["ward=refused,B"])[1].to_list() == [None, "a", None]


def test_equal_numbers_have_equal_names_and_text_is_no_number() -> None:
    assert names_of(pl.Series(["1.0", "01", "1e0", "x"])).to_list() == ["1", "1", "1", "x"]
    assert names_of(pl.Series([0.5, None])).to_list() == ["0.5", None]
    assert numbers_of(pl.Series(["3", ">89", None])).to_list() == [3.0, None, None]
