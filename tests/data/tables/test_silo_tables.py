"""Tables as hospitals have them: separators, marks of missing values, silos by column or file, pitfalls."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hospitals import patients

from fedilc.data.tables.silo_tables import SiloTables, read_tables, tables_of
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import DataError


def by_hospital(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {str(n[0]): p.drop("hospital") for n, p in frame.partition_by("hospital", as_dict=True).items()}


def read(path: Path, silo_column: str = "hospital", **settings: object) -> SiloTables:
    return read_tables([path], TableSettings(**{"label": "died", **settings}), silo_column)


def test_a_csv_with_semicolons_a_mark_and_question_marks_is_read_as_it_is(tmp_path: Path) -> None:
    text = "hospital;age;sex;died\na;61;m;yes\na;?;f;no\nb;58,5;NA;no\nb;;m;yes\n"
    (tmp_path / "p.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    found = read(tmp_path / "p.csv", positive="yes")
    assert list(found.silos) == ["a", "b"]
    made = found.fit(["a", "b"])
    assert made.columns == ("age", "age missing", "sex=f", "sex=m", "sex missing")
    assert found.silos["a"].y.tolist() == [1, 0]
    assert found.label.loss == "binary"
    assert found.label.classes == ("no", "yes")
    assert made.transform(found.silos["b"].frame)[:, 1].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_every_kind_of_file_gives_the_same_inputs(tmp_path: Path, kind: str) -> None:
    frame, path = patients(), tmp_path / f"p.{kind}"
    if kind == "parquet":
        frame.write_parquet(path)
    else:
        text = frame.write_csv().encode()
        path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    wanted = tables_of(by_hospital(frame), TableSettings(label="died"))
    found = read(path)
    assert found.fit(["h0", "h1"]) == wanted.fit(["h0", "h1"])
    made = found.fit(["h0", "h1"])
    assert made.transform(found.silos["h2"].frame).equal(made.transform(wanted.silos["h2"].frame))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_name_is_no_pattern(tmp_path: Path, kind: str) -> None:
    frame = patients()
    path = tmp_path / f"north [old] 50%.{kind}"
    frame.write_csv(path) if kind == "csv" else frame.write_parquet(path)
    assert list(read_tables([path], TableSettings(label="died")).silos) == ["north [old] 50%"]


def test_several_files_are_a_silo_each(tmp_path: Path) -> None:
    paths = []
    for name, part in patients().partition_by("hospital", as_dict=True).items():
        paths.append(tmp_path / f"{name[0]}.csv")
        part.drop("hospital").write_csv(paths[-1])
    found = read_tables(paths, TableSettings(label="died"))
    assert list(found.silos) == ["h0", "h1", "h2"]
    assert len(found.silos["h1"].silo(found.fit(["h0"]), 0.25, seed=0)) == 30


def test_arrays_are_tables_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(20, 3)), y=np.arange(20) % 2)
    found = read_tables([tmp_path / "a.npz"], TableSettings(label="y"))
    assert found.fit(["a"]).columns == ("x0", "x1", "x2")


def test_the_same_column_with_text_everywhere_is_still_one_of_numbers() -> None:
    ages = ["41", "52", ">89", "63", "n/a", "70", "38"]
    frame = pl.DataFrame({"age": ages * 4, "died": [0, 1] * 14})
    made = tables_of({"a": frame, "b": frame}, TableSettings(label="died")).fit(["a", "b"])
    assert made.columns == ("age", "age missing")
    kept = tables_of({"a": frame}, TableSettings(label="died", categorical=("age",))).fit(["a"])
    assert ">89" in kept.features[0].categories


def test_silos_of_a_column_come_in_natural_order(tmp_path: Path) -> None:
    frame = pl.DataFrame({"hospital": ["h10", "h9", "h10", "h9"], "age": [1, 2, 3, 5], "died": [0, 1, 1, 0]})
    frame.write_csv(tmp_path / "p.csv")
    assert list(read(tmp_path / "p.csv").silos) == ["h9", "h10"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"label": "dead"}, "no label column 'dead'"),
        ({"silo_column": "died"}, "'died' is given both as the label and as the column that names silos"),
        ({"silo_column": "hopital"}, "no column 'hopital' that names silos; did you mean 'hospital'"),
        ({"drop": ["agee"]}, "`drop` names the column 'agee', which no file has; did you mean 'age'"),
        ({"missing": ["agee=-9"]}, "`missing` names the column 'agee', which no file has"),
        ({"positive": "maybe"}, "is never 'maybe'"),
        ({"label": "died>0"}, "compares numbers"),
    ],
)
def test_wrong_names_are_one_sentence(tmp_path: Path, settings: dict[str, object], sentence: str) -> None:
    patients().write_csv(tmp_path / "p.csv")
    with pytest.raises(DataError, match=sentence):
        read(tmp_path / "p.csv", **settings)
