"""Federated preprocessing: exact sums, the same bits for any split and order, equal to a slow oracle."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import get_args

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedilc.data.tables.preprocessing import NumberFeature, Preprocessing
from fedilc.data.tables.silo_summary import truncated, truncated_counts
from fedilc.data.tables.silo_tables import SiloTables, read_tables, tables_of
from fedilc.data.tables.table_settings import Scaling, TableSettings
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
    frame = whole.silos["s0"].frame
    for scaling in get_args(Scaling):
        first, second = whole.fit(list(whole.silos), scaling), spread.fit(list(spread.silos), scaling)
        assert first.model_dump_json() == second.model_dump_json()
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


def seven_digits(value: float) -> float:
    """The number nearest to a value, towards 0, that is a whole multiple below 128 of a power of two."""
    size, unit = abs(Fraction(value)), Fraction(1)
    if size < Fraction(1, 2**126):
        return 0.0
    while size >= 128 * unit:
        unit *= 2
    while size < 64 * unit:
        unit /= 2
    return float(size // unit * unit) * (1 if value > 0 else -1)


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=30))
def test_truncated_numbers_equal_a_slow_oracle(values: list[float]) -> None:
    assert truncated(np.array(values)).tolist() == [seven_digits(value) for value in values]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(NUMBERS, st.integers(-5, 5).map(float)), min_size=12, max_size=40), st.integers(1, 39)
)
def test_robust_scaling_is_that_of_the_pooled_quantiles_of_truncated_numbers(
    values: list[float], cut: int
) -> None:
    values = [-1.0, 1.0, *values]
    frame = pl.DataFrame({"age": values, "died": [place % 2 for place in range(len(values))]})
    parts = {"a": frame[:cut], "b": frame[cut:]} if cut < len(values) else {"a": frame}
    made = tables_of(parts, SETTINGS.model_copy(update={"categorical": ()})).fit(list(parts), "robust")
    (feature,) = made.features
    assert isinstance(feature, NumberFeature)
    known = np.array([seven_digits(value) for value in values])
    lower, middle, upper = np.quantile(known, (0.25, 0.5, 0.75), method="inverted_cdf")
    if lower == upper:
        assert feature.low is None
        return
    unit = (upper - lower) / (2 * NormalDist().inv_cdf(0.75))
    low, high = lower - 3 * (upper - lower), upper + 3 * (upper - lower)
    assert (feature.mean, feature.scale, feature.low, feature.high) == (middle, unit, low, high)
    wanted = (np.clip(values, low, high) - middle) / unit
    found = made.transform(frame).numpy()[:, 0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert Preprocessing.model_validate_json(made.model_dump_json()) == made


@given(st.lists(NUMBERS, min_size=1, max_size=60), st.integers(1, 12))
def test_groups_of_a_histogram_have_enough_rows_and_lose_none(values: list[float], least: int) -> None:
    groups = truncated_counts(np.array(values), least)
    assert sum(rows for _, rows in groups) == len(values)
    assert len(groups) == 1 or all(rows >= least for _, rows in groups)
    known = np.sort([seven_digits(value) for value in values])
    end = 0
    for value, rows in groups:  # each group is named by the middle of its own rows
        assert value == np.quantile(known[end : end + rows], 0.5, method="inverted_cdf")
        end += rows


def test_a_far_value_moves_no_input_of_the_others_and_is_clipped_at_a_new_site() -> None:
    random = np.random.default_rng(0)
    ages = random.normal(60, 10, 99).round()

    def fitted(last: float) -> Preprocessing:
        frame = pl.DataFrame({"age": [*ages, last], "y": [0, 1] * 50})
        return tables_of({"s": frame}, TableSettings(label="y")).fit(["s"], "robust")

    one, other = fitted(90.0), fitted(1e30)
    assert one.model_dump_json() == other.model_dump_json()
    new = pl.DataFrame({"age": [1e30, 60.0, -1e30, None]})
    high, usual, low, missing = one.transform(new)[:, 0].tolist()
    assert -7 < low < -4 < usual < 1 < 4 < high < 7
    assert missing == 0


def test_a_column_that_is_mostly_one_number_is_scaled_as_before() -> None:
    frame = pl.DataFrame({"dose": [0.0] * 80 + [5.0, 900.0] * 10, "y": [0, 1] * 50})
    tables = tables_of({"s": frame}, TableSettings(label="y"))
    assert tables.fit(["s"], "robust") == tables.fit(["s"])
