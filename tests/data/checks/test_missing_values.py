"""Numbers that probably mean a missing value are noted, and measurements are not."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from small_silos import examples, notes_of

from fedilc import Federation, Silo
from fedilc.data.checks.columns import ColumnFacts, column_code, missing_values, places
from fedilc.data.tables.silo_tables import tables_of
from fedilc.data.tables.table_settings import TableSettings


def test_temperatures_below_zero_are_no_missing_codes() -> None:
    x, y = examples(0)
    x[:, 0] = np.random.default_rng(1).integers(-20, 20, len(x))
    x[:4, 0] = -9
    assert notes_of(Federation("f", [Silo("a", x, y)])) == []


def test_a_code_that_is_plain_in_one_silo_is_counted_in_all() -> None:
    silos = []
    for seed, name in enumerate("abc"):
        x, y = examples(seed)
        x[:, 0] = 999 if name == "c" else np.abs(x[:, 0])
        x[:4, 0] = 999
        silos.append(Silo(name, x, y))
    note = next(note for note in notes_of(Federation("f", silos)) if "999 probably" in note)
    assert note == (
        "999 probably means a missing value in column 0 (everywhere) and is used as a number; fill or drop "
        "such cells"
    )


def test_a_frequent_code_near_the_other_values_is_noted() -> None:
    x, y = examples(0)
    x[: len(x) // 4, 0] = -9
    assert "-9 probably means a missing value in column 0" in notes_of(Federation("f", [Silo("a", x, y)]))[0]


@pytest.mark.parametrize(
    "values", [[5, 6, -9, -9, 7], [5, 6, 999, 999, 7], [0] * 5, [5, 6, 7, 8, 9]], ids=str
)
def test_files_and_tables_have_the_same_notes(values: list[int]) -> None:
    other = [50, 60, 70, 80, 90]
    columns = {"a": np.repeat(values, 10), "b": np.repeat(other, 10)}
    y = np.arange(50) % 2
    silos = [Silo(name, column[:, None], y) for name, column in columns.items()]
    of_files = [note for note in notes_of(Federation("f", silos, columns=["x"])) if "missing value" in note]
    frames = {name: pl.DataFrame({"x": column, "died": y}) for name, column in columns.items()}
    of_tables = [note for note in tables_of(frames, TableSettings(label="died")).notes if "missing" in note]
    assert [note.rpartition(";")[0] for note in of_files] == [note.rpartition(";")[0] for note in of_tables]
    assert len(of_files) == (values != [5, 6, 7, 8, 9])


def test_a_number_is_a_code_if_it_is_repeated_at_an_end_of_the_column() -> None:
    assert column_code(np.array([1.0, 2.0, -9.0, -9.0])) == (-9.0, True)
    assert column_code(np.array([-20.0, 2.0, -9.0, -9.0])) is None
    assert column_code(np.array([1.0, 2.0, -9.0])) is None
    assert column_code(np.array([])) is None
    assert column_code(np.array([990.0, 998.0, 999.0, 999.0])) == (999.0, False)


def test_a_code_that_stands_out_nowhere_and_zeros_beside_small_numbers_are_not_noted() -> None:
    plain = ColumnFacts(-9.0, stands_out=False, zero=False, mean_square=4.0)
    large = ColumnFacts(-9.0, stands_out=False, zero=False, mean_square=101.0)
    zero = ColumnFacts(None, stands_out=False, zero=True, mean_square=0.0)
    assert missing_values({"a": plain, "b": plain}) == []
    assert missing_values({"a": zero, "b": plain}) == []
    assert missing_values({"a": zero, "b": zero}) == []
    assert len(missing_values({"a": zero, "b": large})) == 1


def test_places_are_named_unless_they_are_all() -> None:
    assert places(["'a'"], ["'a'"]) == "in 'a'"
    assert places(["'a'"], ["'a'", "'b'"]) == "in 'a'"
    assert places(["'a'", "'b'"], ["'a'", "'b'"]) == "everywhere"
