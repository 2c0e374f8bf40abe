"""Federated preprocessing: exact sums, the same bits for any split and order, equal to a slow oracle."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedilc.data.tables.preprocessing import Preprocessing
from fedilc.data.tables.silo_tables import SiloTables, read_tables, tables_of
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import DataError

NUMBERS = st.floats(-1e12, 1e12)
SETTINGS = TableSettings(label="died", keep=("age",), categorical=("sex",))
CELL = st.one_of(st.none(), NUMBERS, st.sampled_from([0.0, 1e8, 1e8 + 8, -1e-3]))


def tables(rows: list[tuple[float | None, str | None, int]], cuts: list[int], order: list[int]) -> SiloTables:
    """Spread the rows over silos, and put the silos into an order."""
    frame = pl.DataFrame(
        {
            "age": pl.Series([r[0] for r in rows], dtype=pl.Float64),
            "sex": pl.Series([r[1] for r in rows], dtype=pl.String),
            "died": [r[2] for r in rows],
        }
    )
    bounds = [0, *sorted(cuts), len(rows)]
    parts = [frame[a:b] for a, b in pairwise(bounds) if b > a]
    ranked = sorted(range(len(parts)), key=lambda i: order[i % len(order)] if order else i)
    return tables_of({f"s{i}": parts[i] for i in ranked}, SETTINGS)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(CELL, st.sampled_from([None, "m", "f", "x"])), min_size=8, max_size=30),
    st.lists(st.integers(0, 30), max_size=4),
    st.lists(st.integers(0, 9), max_size=5),
)
def test_any_split_and_order_of_silos_gives_the_same_bits(
    cells: list[tuple[float | None, str | None]], cuts: list[int], order: list[int]
) -> None:
    rows = [(1.5, "m", 0), (2.5, "f", 1), *((age, sex, i % 2) for i, (age, sex) in enumerate(cells))]
    whole, spread = tables(rows, [], []), tables(rows, [min(c, len(rows)) for c in cuts], order)
    first, second = whole.fit(list(whole.silos)), spread.fit(list(spread.silos))
    assert first.model_dump_json() == second.model_dump_json()
    frame = whole.silos["s0"].frame
    assert first.transform(frame).numpy().tobytes() == second.transform(frame).numpy().tobytes()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(CELL, st.sampled_from([None, "m", "f"])), min_size=4, max_size=20))
def test_transform_equals_a_slow_oracle(cells: list[tuple[float | None, str | None]]) -> None:
    rows = [(1.5, "m", 0), (2.5, "f", 1), *((age, sex, i % 2) for i, (age, sex) in enumerate(cells))]
    found = tables(rows, [3], [])
    made = found.fit(list(found.silos))
    known = [Fraction(r[0]) for r in rows if r[0] is not None]
    mean = sum(known) / len(known)
    deviation = float(sum((v - mean) ** 2 for v in known) / len(known)) ** 0.5 or 1.0
    columns = {"age": [0.0 if r[0] is None else (r[0] - float(mean)) / deviation for r in rows]}
    if len(known) < len(rows):
        columns["age missing"] = [float(r[0] is None) for r in rows]
    columns |= {f"sex={name}": [float(r[1] == name) for r in rows] for name in ("f", "m")}
    if any(r[1] is None for r in rows):
        columns["sex missing"] = [float(r[1] is None) for r in rows]
    assert list(made.columns) == list(columns)
    everything = pl.concat([found.silos[name].frame for name in found.silos])
    wanted = np.array(list(columns.values())).T
    np.testing.assert_allclose(made.transform(everything).numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_a_saved_preprocessing_is_the_same_to_the_bit(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": [0.1, 0.2, 0.7], "b": ["x", None, "y"], "y": [0, 1, 0]})
    made = tables_of({"s": frame}, TableSettings(label="y"))
    first = made.fit(["s"])
    again = Preprocessing.model_validate_json(first.model_dump_json())
    assert again == first
    assert again.transform(frame).equal(first.transform(frame))


def test_the_held_out_silo_has_no_say(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def silo(shift: float, sex: list[str]) -> pl.DataFrame:
        return pl.DataFrame(
            {"age": random.normal(shift, 2, 30), "sex": sex * 15, "died": random.integers(0, 2, 30)}
        )

    train = {"a": silo(50, ["m", "f"]), "b": silo(60, ["f", "m"])}
    clean = tables_of({**train, "test": silo(55, ["m", "f"])}, TableSettings(label="died"))
    poison = silo(1e9, ["poison", "m"]).with_columns(
        pl.lit(-9).alias("died2"), (1 - pl.col("died")).alias("died"), pl.lit(None).alias("age")
    )
    poisoned = tables_of({**train, "test": poison}, TableSettings(label="died"))
    assert clean.fit(["a", "b"]).model_dump_json() == poisoned.fit(["a", "b"]).model_dump_json()
    made = poisoned.fit(["a", "b"])
    one, two = (t.silos["a"].silo(made, 0.3, seed=3) for t in (clean, poisoned))
    assert one.x.equal(two.x)
    assert one.y.equal(two.y)


def test_an_unknown_category_is_none_of_the_known_ones() -> None:
    found = tables_of({"s": pl.DataFrame({"sex": ["m", "f"], "y": [0, 1]})}, TableSettings(label="y"))
    made = found.fit(["s"])
    assert made.transform(pl.DataFrame({"sex": ["other", "m"]})).tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_numbers_that_are_names_have_one_name_however_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("cp,y\n1,0\n2,1\n")
    (tmp_path / "b.csv").write_text("cp,y\n1.0,0\n3.0,1\n")
    found = read_tables(
        [tmp_path / "a.csv", tmp_path / "b.csv"], TableSettings(label="y", categorical=["cp"])
    )
    assert found.fit(["a", "b"]).columns == ("cp=1", "cp=2", "cp=3")


def test_given_categories_are_used_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("cp,y\n1,0\n2,1\n")
    found = read_tables([tmp_path / "a.csv"], TableSettings(label="y", categories={"cp": ["4", "1", "2"]}))
    assert found.fit(["a"]).columns == ("cp=4", "cp=1", "cp=2")


def test_nothing_left_to_learn_from_is_said() -> None:
    frame = pl.DataFrame({"when": ["2020-01-02", "2021-01-02"], "y": [0, 1]})
    found = tables_of({"s": frame}, TableSettings(label="y"))
    with pytest.raises(DataError, match="no column is left"):
        found.fit(["s"])
