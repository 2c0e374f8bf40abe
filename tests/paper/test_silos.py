"""Silos from a table of patients: who trains, who tests, and in what proportions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from real_data import real_data

from fedilc import Federation, Silo
from fedilc.errors import ConfigError, DataError
from fedilc.paper.eicu import PatientTable, eicu_federation, read_demo, read_patients

SIZES = {"d": 20, "a": 50, "c": 30, "b": 30, "e": 10}


def patients(deaths: float = 0.2) -> PatientTable:
    """Patients of five silos; the bits of a patient's inputs are their number, so that each is known."""
    silo = np.repeat(list(SIZES), list(SIZES.values()))
    number = np.arange(len(silo))
    died = np.concatenate([np.arange(size) < round(deaths * size) for size in SIZES.values()])
    return PatientTable(silo, died.astype(np.uint8), (number[:, None] >> np.arange(8) & 1).astype(np.uint8))


def numbers(x: torch.Tensor | None) -> list[int]:
    assert x is not None
    return (x.long() << torch.arange(8)).sum(1).tolist()


def everyone(silo: Silo) -> list[int]:
    return sorted(numbers(silo.x) + numbers(silo.x_val))


def test_the_silos_with_the_most_patients_train_and_the_others_are_the_test() -> None:
    federation = eicu_federation(patients(), silos=3, oversample=False, equal_sizes=False)
    assert [silo.name for silo in federation.silos] == ["a", "b", "c"]
    outside = patients()
    rows = np.flatnonzero(np.isin(outside.silo, ["d", "e"]))
    assert numbers(federation.x_test) == rows.tolist()
    assert federation.y_test is not None
    assert federation.y_test.tolist() == outside.died[rows].tolist()
    for silo in federation.silos:
        assert everyone(silo) == np.flatnonzero(outside.silo == silo.name).tolist()


def test_every_example_keeps_its_own_outcome_and_inputs_are_float32() -> None:
    table = patients()
    federation = eicu_federation(table, silos=3)
    for silo in federation.silos:
        assert silo.x.dtype == torch.float32
        for x, y in ((silo.x, silo.y), (silo.x_val, silo.y_val)):
            assert y is not None
            assert y.tolist() == table.died[numbers(x)].tolist()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
def test_each_outcome_is_validated_in_proportion(share: float) -> None:
    federation = eicu_federation(
        patients(), silos=3, oversample=False, equal_sizes=False, validation_share=share
    )
    for silo in federation.silos:
        size = SIZES[silo.name]
        held_out = torch.zeros(0) if silo.y_val is None else silo.y_val
        for label, number in ((1, size // 5), (0, size - size // 5)):
            assert (held_out == label).sum() == round(share * number)


@pytest.mark.parametrize("deaths", [0.2, 0.5, 0.8])
def test_oversampling_repeats_the_rarer_outcome_of_training_until_both_are_as_frequent(deaths: float) -> None:
    settings: dict[str, Any] = {"silos": 3, "equal_sizes": False}
    plain = eicu_federation(patients(deaths), **settings, oversample=False)
    balanced = eicu_federation(patients(deaths), **settings, oversample=True)
    for before, after in zip(plain.silos, balanced.silos, strict=True):
        assert after.y.mean() == 0.5
        assert numbers(after.x)[: len(before)] == numbers(before.x)
        assert set(numbers(after.x)) == set(numbers(before.x))
        assert len(after) == 2 * max((before.y == 0).sum(), (before.y == 1).sum())
        assert numbers(after.x_val) == numbers(before.x_val)


def test_a_silo_where_nobody_died_stays_as_it_is() -> None:
    federation = eicu_federation(patients(0.0), silos=3, equal_sizes=False)
    assert [len(silo) + len(silo.y_val) for silo in federation.silos if silo.y_val is not None] == [
        50,
        30,
        30,
    ]


def test_equal_sizes_cut_each_silo_to_the_smallest_that_trains() -> None:
    federation = eicu_federation(patients(), silos=4, oversample=False, equal_sizes=True)
    assert [len(everyone(silo)) for silo in federation.silos] == [20, 20, 20, 20]
    assert len(numbers(federation.x_test)) == 10


def test_a_subset_takes_that_part_of_the_training_silos_and_leaves_the_test() -> None:
    federation = eicu_federation(patients(), silos=3, oversample=False, equal_sizes=False, subset=0.5)
    assert [len(everyone(silo)) for silo in federation.silos] == [25, 15, 15]
    assert len(numbers(federation.x_test)) == 30


def drawn(federation: Federation) -> list[list[int]]:
    return [numbers(part) for silo in federation.silos for part in (silo.x, silo.x_val)]


def test_a_seed_draws_the_same_split_again_and_another_seed_another() -> None:
    first, again, other = (drawn(eicu_federation(patients(), seed, silos=3)) for seed in (1, 1, 2))
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))


@pytest.mark.parametrize("silos", [5, 20, 0])
def test_a_test_that_would_be_empty_is_refused(silos: int) -> None:
    with pytest.raises(ConfigError, match=f"silos={silos} cannot train: the table has 5, and one must be"):
        eicu_federation(patients(), silos=silos)


def written(path: Path, **changes: Any) -> Path:
    table = patients()
    columns = {"silo": table.silo, "died": table.died, **{f"hicl-{n}": table.x[:, n] for n in range(8)}}
    frame = pl.DataFrame({key: value for key, value in (columns | changes).items() if value is not None})
    frame.write_parquet(path)
    return path


def test_a_prepared_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    table, expected = read_patients(written(tmp_path / "eicu.parquet")), patients()
    for name in ("silo", "died", "x"):
        assert np.array_equal(getattr(table, name), getattr(expected, name))
    from_file, from_table = (
        eicu_federation(it, silos=3) for it in (read_patients(tmp_path / "eicu.parquet"), expected)
    )
    assert drawn(from_file) == drawn(from_table)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"silo": None}, "is not a table of patients: it needs the columns silo"),
        ({"died": None}, "is not a table of patients"),
        ({"silo": np.arange(140)}, "is not a table of patients"),
        ({"age": np.arange(140.0)}, "is not a table of patients"),
        ({"died": np.full(140, 2, np.uint8)}, "is empty or holds other values than 0 and 1"),
        ({"silo": pl.Series([None] * 140, dtype=pl.String)}, "is empty or holds other values"),
        ({f"hicl-{number}": None for number in range(8)}, "is not a table of patients"),
    ],
)
def test_another_parquet_file_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=f"other.parquet {sentence}.*; make it with `fedilc data eicu`"):
        read_patients(written(tmp_path / "other.parquet", **changes))


def test_an_empty_table_and_a_file_of_another_kind_are_refused(tmp_path: Path) -> None:
    whole = pl.read_parquet(written(tmp_path / "whole.parquet"))
    whole.clear().write_parquet(tmp_path / "empty.parquet")
    (tmp_path / "no.parquet").write_text("silo,died\n")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "whole.parquet").read_bytes()[:-20])
    for name, sentence in (("empty", "is empty"), ("no", "cannot be read: "), ("cut", "cannot be read: ")):
        with pytest.raises(DataError, match=f"{name}.parquet {sentence}") as refused:
            read_patients(tmp_path / f"{name}.parquet")
        assert "\n" not in str(refused.value)


def test_a_missing_demo_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"demo is not in .*eicu-demo; get it with `fedilc data fetch eicu-demo`"
    ):
        read_demo(tmp_path / "eicu-demo")


def test_the_demo_trains_on_three_regions_and_tests_on_the_fourth() -> None:
    table = read_demo(real_data("eicu-demo") / "eicu-demo")
    federation = eicu_federation(table, silos=3, equal_sizes=False, name="eicu-demo")
    assert [silo.name for silo in federation.silos] == ["Midwest", "South", "West"]
    assert federation.x_test is not None
    assert len(federation.x_test) == (table.silo == "Northeast").sum()
    assert all(silo.y.mean() == 0.5 for silo in federation.silos)
