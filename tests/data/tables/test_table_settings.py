"""`files` is `tables` with `scale = false`: both spellings read the same silos, and are checked alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import Refusal, fedilc

from fedilc.config import validated
from fedilc.data.digests import silo_digest
from fedilc.data.sources import Files, FileSource, Tables
from fedilc.errors import ConfigError, DataError, FedILCWarning


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three silos, each as a file, and all of them in one table with a column of silos."""
    random = np.random.default_rng(4)
    frames = []
    for name in "abc":
        x = random.normal(size=(60, 3)).round(4)
        frame = pl.DataFrame({"age": x[:, 0], "dose": x[:, 1], "label": (x[:, 2] > 0).astype(int)})
        frame.write_csv(tmp_path / f"{name}.csv")
        frames.append(frame.with_columns(pl.lit(name).alias("site")))
    (tmp_path / "whole").mkdir()
    pl.concat(frames).write_csv(tmp_path / "whole" / "all.csv")
    np.savez(
        tmp_path / "whole" / "a.npz", x=frames[0].select("age", "dose").to_numpy(), label=frames[0]["label"]
    )
    return tmp_path


def digests(source: FileSource, folder: Path) -> dict[str, str]:
    federation = source.build(3, folder)
    return {silo.name: silo_digest(silo) for silo in federation.silos}


@pytest.mark.parametrize(
    "settings",
    [
        {"silos": "[abc].csv"},
        {"files": "[abc].csv"},
        {"files": ["a.csv", "[bc].csv"]},
        {"silos": {"a": "a.csv", "b": "b.csv", "c": "c.csv"}},
        {"files": "whole/all.csv", "silo_column": "site"},
        {"silos": "[abc].csv", "in_memory": False},
    ],
    ids=str,
)
def test_tables_that_are_not_scaled_are_the_silos_of_files(folder: Path, settings: dict[str, Any]) -> None:
    wanted = digests(Files(silos="[abc].csv"), folder)
    source = Tables(label="label", scale=False, **settings)
    assert digests(source, folder) == wanted
    store = source.store(3, folder)
    assert {name: silo_digest(store.open(name)) for name in store.silos} == wanted
    assert store.resident is source.in_memory
    assert store.preprocessing is None


@pytest.mark.parametrize("scale", [True, False])
def test_the_test_set_is_a_held_out_silo_or_a_file(folder: Path, scale: bool) -> None:
    held_out = Tables(silos="[abc].csv", label="label", scale=scale, test="c").build(0, folder)
    file = Tables(silos="[ab].csv", label="label", scale=scale, test="c.csv").build(0, folder)
    column = Tables(files="whole/all.csv", silo_column="site", label="label", scale=scale, test="c")
    for other in (file, column.build(0, folder)):
        assert [silo.name for silo in other.silos] == ["a", "b"]
        assert other.x_test is not None
        assert held_out.x_test is not None
        assert other.x_test.equal(held_out.x_test)
        assert all(one.x.equal(two.x) for one, two in zip(held_out.silos, other.silos, strict=True))
    with pytest.raises(DataError, match="there is no silo 'd'"):
        Tables(silos="[ab].csv", label="label", scale=scale, test="d").build(0, folder)
    with pytest.raises(DataError, match=r"d\.csv does not exist; correct the path"):
        Tables(silos="[ab].csv", label="label", scale=scale, test="d.csv").build(0, folder)
    with pytest.raises(DataError, match=r"data\.test 'b\.csv' is also the file of silo 'b'"):
        Tables(silos="[ab].csv", label="label", scale=scale, test="b.csv").build(0, folder)


@pytest.mark.parametrize("scale", [True, False])
def test_a_test_file_with_the_rows_of_a_silo_is_refused(folder: Path, scale: bool) -> None:
    pl.read_csv(folder / "a.csv").sample(fraction=1.0, shuffle=True, seed=1).write_csv(folder / "copy.csv")
    source = Tables(silos="[ab].csv", label="label", scale=scale, test="copy.csv")
    with pytest.raises(DataError, match=r"a copy of 'a'|the test set has the same rows as silo 'a'"):
        source.build(0, folder)
    half = pl.read_csv(folder / "a.csv")[:20]
    half.write_csv(folder / "copy.csv")
    with pytest.raises(DataError, match="20 of the 20 rows of the test set are also in 'a'"):
        source.build(0, folder)


@pytest.mark.parametrize("scale", [True, False])
def test_repeated_rows_are_noted(folder: Path, scale: bool) -> None:
    once = pl.read_csv(folder / "a.csv")
    pl.concat([once, once]).write_csv(folder / "a.csv")
    with pytest.warns(FedILCWarning, match="validation rows are also training rows of their silo: 'a'"):
        Tables(silos="[ab].csv", label="label", scale=scale).build(0, folder)


def test_columns_are_chosen_and_labels_compared_without_scaling(folder: Path) -> None:
    source = Tables(silos="[abc].csv", label="age>0", drop=["label"], scale=False)
    federation = source.build(0, folder)
    ages = pl.read_csv(folder / "a.csv")["age"]
    first = federation.silos[0]
    assert federation.columns == ("dose",)
    assert first.x_val is not None
    assert first.y_val is not None
    assert int(first.y.sum() + first.y_val.sum()) == int((ages > 0).sum())
    only = Tables(silos="[abc].csv", label="label", columns=["dose"], scale=False)
    assert only.build(0, folder).columns == ("dose",)
    with pytest.raises(
        DataError, match="`drop` names the column 'doze', which no file has; did you mean 'dose'"
    ):
        Tables(silos="[abc].csv", label="label", drop=["doze"], scale=False).build(0, folder)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "give either files, or silos"),
        ({"files": "a.csv", "silos": "b.csv"}, "give either files, or silos"),
        (
            {"silos": "*.csv", "in_memory": False},
            "in_memory = false needs scale = false and one file per silo",
        ),
        ({"silos": "*.csv", "scale": False, "missing": ["-9"]}, "cannot be combined with missing"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        validated(Tables, settings | {"label": "label"}, "data")
    assert "\n" not in str(refused.value)


def test_text_is_refused_without_scaling_and_named_by_its_silo(folder: Path) -> None:
    path = folder / "whole" / "all.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], "old" + lines[2][lines[2].index(",") :], *lines[3:]]) + "\n")
    source = Tables(files="whole/all.csv", silo_column="site", label="label", scale=False)
    with pytest.raises(DataError, match=r"silo 'a': column 'age' holds text, not numbers \('old' in row 2\)"):
        source.build(0, folder)


def test_a_study_has_no_site_that_is_the_test_set(folder: Path) -> None:
    source = Tables(silos="[ab].csv", label="label", test="c.csv")
    assert list(source.tables(folder).silos) == ["a", "b"]


def test_what_a_run_records_of_its_source_is_what_earlier_versions_recorded() -> None:
    files = {"source", "silos", "label", "test", "loss", "validation_share", "in_memory"}
    assert set(Files(silos="*.csv").model_dump()) == files
    assert set(Files(silos="*.csv", drop=["a"]).model_dump()) == {*files, "drop"}
    tables = Tables(files="x.csv", label="died").model_dump(mode="json")
    assert not {"silos", "scale", "in_memory"} & set(tables)
    assert tables["drop"] == []
    assert Tables(files="x.csv", label="died", scale=False).model_dump()["scale"] is False


@pytest.mark.parametrize("source", ["files", "tables"])
def test_commands_take_both_spellings(folder: Path, source: str, refusal: Refusal) -> None:
    more = "scale = false\n" if source == "tables" else ""
    data = f'[data]\nsource = "{source}"\nsilos = "[ab].csv"\nlabel = "label"\ntest = "c.csv"\n{more}'
    path = folder / f"{source}.toml"
    path.write_text(f"rounds = 1\nlearning_rate = 0.1\n{data}[model]\nhidden = [3]\n")
    assert "can be trained" in fedilc("check", path)
    fedilc("run", path, "--out", folder / "run")
    assert "dose" in fedilc("inspect", path, "--out", folder / "inspected")
    assert "already holds a run" in refusal("run", path, "--out", folder / "run")
    (folder / "b.csv").write_text("age,dose,label\n1,,0\n2,old,1\n")
    said = refusal("run", path, "--out", folder / "other")
    assert "column 'dose' holds text, not numbers ('old' in line 3)" in said
