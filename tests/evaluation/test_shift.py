"""Shifts between silos from counts and sums equal those of the rows themselves."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedilc.data.tables.silo_tables import SiloTables, read_tables
from fedilc.data.tables.table_settings import TableSettings
from fedilc.evaluation.shift import (
    column_shifts,
    describe_silo,
    describe_summary,
    mean_difference,
    pair_shifts,
    stability_index,
)


@pytest.fixture
def tables(tmp_path: Path) -> SiloTables:
    random = np.random.default_rng(0)
    rows = []
    for place, silo in enumerate(("a", "b", "c")):
        for _ in range(200):
            age = None if random.random() < 0.1 * place else 50 + 5 * place + 10 * random.standard_normal()
            sex = "f" if random.random() < 0.5 + 0.2 * place else "m"
            rows.append(
                {"silo": silo, "age": age, "sex": sex, "died": int(random.random() < 0.1 + 0.2 * place)}
            )
    path = tmp_path / "patients.csv"
    pl.DataFrame(rows).write_csv(path)
    return read_tables([path], TableSettings(label="died"), "silo")


def test_the_mean_difference_is_that_of_the_rows(tables: SiloTables) -> None:
    fitted = tables.fit(list(tables.silos))
    described = {name: describe_silo(table, fitted) for name, table in tables.silos.items()}
    ages = {name: table.frame["age"].drop_nulls().to_numpy() for name, table in tables.silos.items()}
    expected = abs(ages["a"].mean() - ages["c"].mean()) / math.sqrt((ages["a"].var() + ages["c"].var()) / 2)
    place = [column.name for column in described["a"].columns].index("age")
    found = mean_difference(described["a"].columns[place], described["c"].columns[place])
    assert found == pytest.approx(expected, rel=1e-9)
    assert described["c"].columns[place].missing == tables.silos["c"].frame["age"].null_count()


def test_the_shares_of_names_differ_by_their_standardised_difference(tables: SiloTables) -> None:
    fitted = tables.fit(list(tables.silos))
    one, two = (describe_silo(tables.silos[name], fitted) for name in ("a", "c"))
    p, q = ((tables.silos[name].frame["sex"] == "f").mean() for name in ("a", "c"))
    assert p is not None
    assert q is not None
    expected = abs(p - q) / math.sqrt((p * (1 - p) + q * (1 - q)) / 2)
    place = [column.name for column in one.columns].index("sex")
    assert mean_difference(one.columns[place], two.columns[place]) == pytest.approx(expected, rel=1e-9)


def test_columns_and_pairs_that_differ_most_come_first(tables: SiloTables) -> None:
    fitted = tables.fit(list(tables.silos))
    described = [describe_silo(table, fitted) for table in tables.silos.values()]
    shifts = column_shifts(described)
    assert shifts[0].index >= shifts[-1].index
    assert set(shifts[0].pair) == {"a", "c"}
    pairs = pair_shifts(described)
    assert pairs["a", "c"]["label"] > pairs["a", "b"]["label"]


def test_a_column_that_a_silo_lacks_is_missing_there(tmp_path: Path) -> None:
    x, y = [0.5 * place for place in range(40)], [0, 1] * 20
    pl.DataFrame({"x": x, "z": x[::-1], "y": y}).write_csv(tmp_path / "a.csv")
    pl.DataFrame({"x": x, "y": y}).write_csv(tmp_path / "b.csv")
    tables = read_tables([tmp_path / "a.csv", tmp_path / "b.csv"], TableSettings(label="y", keep=("z",)))
    fitted = tables.fit(["a", "b"])
    described = [describe_silo(tables.silos[name], fitted) for name in ("a", "b")]
    shift = next(shift for shift in column_shifts(described) if shift.name == "z")
    assert (shift.difference, shift.missing) == (None, 1.0)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=12))
def test_the_stability_index_is_symmetric_and_zero_for_equal_shares(bins: list[tuple[int, int]]) -> None:
    one, two = [a for a, _ in bins], [b for _, b in bins]
    assert stability_index(one, two) == pytest.approx(stability_index(two, one), rel=1e-9, abs=1e-12)
    assert stability_index(one, two) >= 0
    assert stability_index(one, one) == 0


def test_a_summary_describes_a_silo_as_its_rows_do_but_for_bins(tables: SiloTables) -> None:
    fitted = tables.fit(list(tables.silos))
    for name, table in tables.silos.items():
        near, far = describe_silo(table, fitted), describe_summary(tables.summaries[name], fitted)
        assert (far.silo, far.rows, far.classes) == (near.silo, near.rows, near.classes)
        for one, two in zip(near.columns, far.columns, strict=True):
            assert (one.name, one.missing, one.count) == (two.name, two.missing, two.count)
            assert (two.total, two.squares) == pytest.approx((one.total, one.squares), rel=1e-9, abs=1e-9)
            assert two.bins == ()
    described = [describe_summary(tables.summaries[name], fitted) for name in tables.silos]
    shifts = {shift.name: shift for shift in column_shifts(described)}
    assert shifts["age"].large
    assert (shifts["age"].index, shifts["sex"].difference) == (None, None)
    assert "label" in pair_shifts(described)["a", "c"]
