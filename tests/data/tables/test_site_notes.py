"""Copied sites, shared patients, columns that are the site, two spellings and other units are noted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hospitals import hospitals

from fedilc.data.tables.silo_tables import SiloTables, read_tables, tables_of
from fedilc.data.tables.site_notes import folded
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import DataError


def site(seed: int, rows: int = 120) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "age": random.normal(60, 12, rows).round(),
            "lactate": np.exp(random.normal(0.3, 0.5, rows)).round(2),
            "creatinine": np.exp(random.normal(0, 0.4, rows)).round(2),
            "pressure": random.normal(130, 20, rows).round(),
            "temperature": random.normal(37, 0.6, rows).round(1),
            "weight": random.normal(80, 12, rows).round(1),
            "died": (random.random(rows) < 0.4).astype(int),
        }
    )


def noted(frames: dict[str, pl.DataFrame]) -> list[str]:
    return tables_of(frames, TableSettings(label="died")).notes


@pytest.fixture
def sites() -> dict[str, pl.DataFrame]:
    return {name: site(seed) for seed, name in enumerate(["north", "south", "east", "west"])}


def test_sites_without_mistakes_bring_no_note(sites: dict[str, pl.DataFrame]) -> None:
    assert noted(sites) == []


def test_a_copied_site_is_noted_in_any_order_of_rows(sites: dict[str, pl.DataFrame]) -> None:
    sites["copy"] = sites["south"].sample(fraction=1, shuffle=True, seed=1)
    assert noted(sites) == [
        "silo 'copy' is a copy of 'south': it has the same rows, so a model would be tested on what it was "
        'trained on; use `exclude_sites = ["copy"]`'
    ]
    sites["copy"][0, "lactate"] += 0.01
    assert not any("is a copy of" in note for note in noted(sites))


def test_patients_at_two_sites_are_noted_although_cells_differ(sites: dict[str, pl.DataFrame]) -> None:
    moved = sites["north"].head(12).with_columns(pl.col("weight") + 1, pl.col("pressure") * 1.0001)
    sites["west"] = pl.concat([sites["west"], moved])
    said = (
        "12 rows of 'north' are also in 'west', up to a few cells; if they are the same patients, keep each"
    )
    assert noted(sites) == [f"{said} at one site"]


def test_rows_of_few_yes_and_no_are_equal_by_chance() -> None:
    random = np.random.default_rng(0)
    frames = {
        name: pl.DataFrame({f"x{i}": random.integers(0, 2, 200) for i in range(8)}).with_columns(
            pl.Series("died", random.integers(0, 2, 200))
        )
        for name in "abc"
    }
    assert not any("are also in" in note for note in noted(frames))


def test_a_column_that_is_the_site_is_noted(sites: dict[str, pl.DataFrame]) -> None:
    coded = {name: part.with_columns(pl.lit(f"H-{name}").alias("code")) for name, part in sites.items()}
    assert any(
        "column 'code' names the silo" in note and '`drop = ["code"]`' in note for note in noted(coded)
    )
    region = {
        name: part.with_columns(pl.lit("n" if name == "north" else "s").alias("region"))
        for name, part in sites.items()
    }
    assert any("column 'region' is the same within each silo" in note for note in noted(region))
    coded["north"] = coded["north"].with_columns(
        pl.when(pl.int_range(pl.len()) == 0).then(pl.lit("x")).otherwise("code").alias("code")
    )
    assert not any("'code'" in note for note in noted(coded))


@pytest.mark.parametrize(
    ("column", "times", "plus", "said"),
    [
        ("creatinine", 88.4, 0, "by a factor of about"),
        ("weight", 2.2046, 0, "pounds and kilograms"),
        ("temperature", 1.8, 32, "degrees Celsius and Fahrenheit"),
    ],
)
def test_another_unit_at_one_site_is_noted(
    sites: dict[str, pl.DataFrame], column: str, times: float, plus: float, said: str
) -> None:
    sites["east"] = sites["east"].with_columns(pl.col(column) * times + plus)
    (note,) = noted(sites)
    assert f"column {column!r} is larger at 'east' than elsewhere" in note
    assert said in note


def test_patients_who_are_twice_as_ill_are_no_other_unit(sites: dict[str, pl.DataFrame]) -> None:
    sites["east"] = sites["east"].with_columns(pl.col("lactate") * 2.5, pl.col("age") / 3)
    assert noted(sites) == []


def test_spellings_of_one_site_are_one_silo_and_of_two_files_a_note(tmp_path: Path) -> None:
    frame = hospitals(2).with_columns(
        pl.when(pl.int_range(pl.len()) % 7 == 0).then(pl.lit(" h0 ")).otherwise("hospital").alias("hospital")
    )
    frame.write_csv(tmp_path / "all.csv")
    found = read_tables([tmp_path / "all.csv"], TableSettings(label="died"), "hospital")
    assert list(found.silos) == ["H0", "H1"]
    assert sum(len(table.y) for table in found.silos.values()) == len(frame)
    assert any(
        "'H0' and 'h0' differ only in case or spaces, and are taken as one silo, 'H0'" in n
        for n in found.notes
    )
    two = noted({"St. Mary": site(0), "st._mary": site(1)})
    assert any("silos 'St. Mary' and 'st._mary' differ only in case or spaces" in note for note in two)
    assert folded("site 1") != folded("site 11")


def read(tmp_path: Path, exclude: list[str]) -> SiloTables:
    for name in ("a", "b", "c"):
        site(ord(name)).write_csv(tmp_path / f"{name}.csv")
    paths = [tmp_path / f"{name}.csv" for name in "abc"]
    return read_tables(paths, TableSettings(label="died"), None, exclude)


def test_sites_are_excluded_by_name(tmp_path: Path) -> None:
    assert list(read(tmp_path, ["b"]).silos) == ["a", "c"]
    assert list(read(tmp_path, []).with_settings(["a"]).silos) == ["b", "c"]
    with pytest.raises(DataError, match="`exclude_sites` names 'd', which is not a silo"):
        read(tmp_path, ["d"])
    with pytest.raises(DataError, match="no silo is left"):
        read(tmp_path, ["a", "b", "c"])


def test_only_named_columns_are_used_and_further_settings_are_added(tmp_path: Path) -> None:
    whole = read(tmp_path, [])
    few = whole.with_settings(columns=["age", "lactate"])
    assert few.fit(["a"]).columns == ("age", "lactate")
    assert few.with_settings(drop=["age"]).fit(["a"]).columns == ("lactate",)
    assert [len(table.y) for table in few.silos.values()] == [len(table.y) for table in whole.silos.values()]
    with pytest.raises(
        DataError, match="`columns` names the column 'agee', which no file has; did you mean 'age'"
    ):
        whole.with_settings(columns=["agee"])
