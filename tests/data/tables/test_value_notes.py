"""Cells whose meaning was decided while reading are told, each kind of a column in one sentence."""

from __future__ import annotations

import polars as pl

from fedilc.data.tables.silo_tables import tables_of
from fedilc.data.tables.table_settings import TableSettings

FINE = [str(number / 10) for number in range(1, 41)]


def test_each_kind_of_cell_has_one_note_and_a_declared_column_none() -> None:
    codes = [1, 2, 3, 4, 5, 3, 2, 4, 3, 2] * 3 + [8, 9, 8, 9, 3, 3, 3, 3, 3, 3]
    frame = pl.DataFrame(
        {
            "crp": ["<5", *FINE[1:]],
            "cost": ["1,234.50", *FINE[1:]],
            "bp": [float("inf"), *map(float, FINE[1:])],
            "big": [1e150 * float(cell) for cell in FINE],
            "tiny": [1e-200 * float(cell) for cell in FINE],
            "trust": codes,
            "died": [0, 1] * 20,
        }
    )
    other = frame.with_columns(pl.col("bp").reverse() * 1.01)
    found = tables_of({"a": frame, "b": other}, TableSettings(label="died"))
    assert found.fit(["a", "b"]).columns == ("crp", "cost", "bp", "bp missing", "trust")
    expected = [
        "column 'crp': 2 cells (everywhere) are limits such as <5, and count as the limit itself",
        "column 'cost': 2 cells (everywhere) have a thousands separator or a decimal comma, and are read as "
        "numbers",
        "column 'bp': 2 cells (everywhere) are infinite or above 3e+38, and count as missing; correct them",
        "column 'big' is left out: its numbers are infinite or above 3e+38; rescale it",
        "column 'tiny' is left out: its numbers are so close to 0 that their squares are 0; rescale it",
        "column 'trust' is a scale from 1 up and also has 8,9 (everywhere), used as numbers; if they mean "
        'refused or unknown, use `missing = ["trust=8,9"]`',
    ]
    assert sorted(found.notes) == sorted(expected)
    settings = TableSettings(
        label="died", categorical=("crp", "trust"), keep=("crp",), missing=("cost=1,234.50",)
    )
    again = tables_of({"a": frame}, settings)
    assert not any("'crp'" in note or "'trust'" in note or "'cost'" in note for note in again.notes)
    assert "<5" in again.fit(["a"]).features[0].categories
    assert again.silos["a"].frame["cost"][0] == "1,234.50"
