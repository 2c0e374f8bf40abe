"""A silo's summary has counts, exact sums and names, and no row."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedilc.data.tables.silo_summary import (
    SiloSummary,
    exact_squares,
    exact_sum,
    summarise,
)
from fedilc.data.tables.table_settings import TableSettings

ROWS = 60


def summary_of(**columns: object) -> SiloSummary:
    label = pl.Series("died", [0, 1] * (ROWS // 2))
    return summarise("a", pl.DataFrame(columns, strict=False), label, TableSettings(label="died"))


def test_numbers_have_counts_and_exact_sums() -> None:
    found = summary_of(age=["0.1", "0.2", "?", "old"] * 15).column("age")
    assert found is not None
    assert (found.kind, found.count, found.numbers, found.strays) == ("text", 45, 30, 15)
    assert found.sums == (
        30,
        15 * (Fraction(0.1) + Fraction(0.2)),
        15 * (Fraction(0.1) ** 2 + Fraction(0.2) ** 2),
    )


def test_names_are_listed_unless_they_are_too_many_or_identify_rows() -> None:
    found = summary_of(
        ward=["b", "a", None] * 20,
        patient=[f"p{number}" for number in range(ROWS)],
        stay=list(range(1000, 1000 + ROWS)),
        weight=np.random.default_rng(0).normal(size=ROWS),
    )
    by_name = {column.name: column for column in found.columns}
    assert by_name["ward"].levels == ("a", "b")
    assert [by_name[name].identifier for name in ("ward", "patient", "stay", "weight")] == [
        *(False, True, True, False)
    ]
    assert by_name["patient"].levels is by_name["weight"].levels is None
    assert found.column("nobody") is None


def test_what_arrives_from_a_silo_is_checked() -> None:
    sent = summary_of(age=[1.0] * ROWS).model_dump()
    assert SiloSummary.model_validate(sent).rows == ROWS
    for wrong in ({"rows": 0}, {"labels": {"0": -1}}, {"secret": [1.0]}):
        with pytest.raises(ValidationError):
            SiloSummary.model_validate(sent | wrong)


@given(st.lists(st.floats(-3e38, 3e38), max_size=40))
def test_sums_and_squares_are_exact(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    assert exact_sum(array) == sum((Fraction(v) for v in values), Fraction(0))
    wanted = sum((Fraction(v) ** 2 for v in values), Fraction(0))
    assert abs(exact_squares(array) - wanted) <= len(values) * Fraction(2) ** -950
