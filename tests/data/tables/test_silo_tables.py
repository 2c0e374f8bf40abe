"""Tables as hospitals have them: separators, marks of missing values, silos by column or file, pitfalls."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedilc.data.tables.preprocessing import NumberFeature
from fedilc.data.tables.silo_tables import SiloTables, TableSettings, read_tables, tables_of
from fedilc.errors import DataError


def hospitals(rows: int = 40, silos: int = 3, seed: int = 0) -> pl.DataFrame:
    """Return patients of some hospitals: numbers, names, missing values and an outcome."""
    random = np.random.default_rng(seed)
    count = rows * silos
    age = random.normal(60, 10, count).round(1)
    return pl.DataFrame(
        {
            "hospital": [f"h{i // rows}" for i in range(count)],
            "age": age,
            "sex": random.choice(["male", "female"], count),
            "lactate": random.normal(2, 1, count).round(2),
            "died": random.choice(["no", "yes"], count),
        }
    )


def by_hospital(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {str(n[0]): p.drop("hospital") for n, p in frame.partition_by("hospital", as_dict=True).items()}


def read(path: Path, **settings: object) -> SiloTables:
    return read_tables([path], **{"label": "died", "silo_column": "hospital", **settings})  # type: ignore[arg-type]


def test_a_csv_with_semicolons_a_mark_and_question_marks_is_read_as_it_is(tmp_path: Path) -> None:
    text = "hospital;age;sex;died\na;61;m;yes\na;?;f;no\nb;58,5;NA;no\nb;;m;yes\n"
    (tmp_path / "p.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    found = read(tmp_path / "p.csv", positive="yes")
    assert list(found.silos) == ["a", "b"]
    made = found.fit(["a", "b"])
    assert made.columns == ("age", "age missing", "sex=f", "sex=m", "sex missing")
    assert found.silos["a"].y.tolist() == [1, 0]
    assert found.loss == "binary"
    assert found.classes == ("no", "yes")
    assert made.transform(found.silos["b"].frame)[:, 1].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_every_kind_of_file_gives_the_same_inputs(tmp_path: Path, kind: str) -> None:
    frame, path = hospitals(), tmp_path / f"p.{kind}"
    if kind == "parquet":
        frame.write_parquet(path)
    else:
        text = frame.write_csv().encode()
        path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    wanted = tables_of(by_hospital(frame), TableSettings("died"))
    found = read(path)
    assert found.fit(["h0", "h1"]) == wanted.fit(["h0", "h1"])
    made = found.fit(["h0", "h1"])
    assert made.transform(found.silos["h2"].frame).equal(made.transform(wanted.silos["h2"].frame))


def test_several_files_are_a_silo_each(tmp_path: Path) -> None:
    paths = []
    for name, part in hospitals().partition_by("hospital", as_dict=True).items():
        paths.append(tmp_path / f"{name[0]}.csv")
        part.drop("hospital").write_csv(paths[-1])
    found = read_tables(paths, label="died")
    assert list(found.silos) == ["h0", "h1", "h2"]
    assert len(found.silo("h1", found.fit(["h0"]), seed=0, validation=0.25)) == 30


def test_arrays_are_tables_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(20, 3)), y=np.arange(20) % 2)
    found = read_tables([tmp_path / "a.npz"], label="y")
    assert found.fit(["a"]).columns == ("x0", "x1", "x2")


def test_a_label_may_be_a_comparison(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,num\n1,0\n2,3\n3,1\n")
    found = read_tables([tmp_path / "a.csv"], label="num>0")
    assert found.silos["a"].y.tolist() == [0, 1, 1]
    assert found.classes == ("num<=0", "num>0")
    assert found.fit(["a"]).columns == ("age",)


@pytest.mark.parametrize(
    ("values", "loss", "classes"),
    [
        ([0, 1, 1], "binary", ("0", "1")),
        (["low", "mid", "top"], "multiclass", ("low", "mid", "top")),
        ([2, 10, 3], "multiclass", ("2", "3", "10")),
        ([0.5, 1.25, 3.0], "regression", ()),
    ],
)
def test_the_task_is_found_from_the_label(values: list[object], loss: str, classes: tuple[str, ...]) -> None:
    found = tables_of({"s": pl.DataFrame({"a": [1, 2, 3], "y": values})}, TableSettings("y"))
    assert (found.loss, found.classes) == (loss, classes)


def test_an_identifier_is_left_out_and_said_unless_it_is_kept() -> None:
    frame = hospitals().with_columns(
        pl.int_range(pl.len()).alias("patient"),
        pl.int_range(pl.len()).cast(pl.String).str.zfill(5).add("x").alias("code"),
    )
    parts = by_hospital(frame)
    found = tables_of(parts, TableSettings("died"))
    assert "patient" not in found.fit(["h0", "h1"]).columns
    for name in ("patient", "code"):
        assert any(f"column {name!r} is left out" in note and "identifier" in note for note in found.notes)
    kept = tables_of(parts, TableSettings("died", keep=("patient",)))
    assert "patient" in kept.fit(["h0", "h1"]).columns


def test_columns_that_tell_the_label_are_pointed_out() -> None:
    frame = hospitals().with_columns(
        (pl.col("died") == "yes").cast(pl.Int64).add(pl.col("age") / 1e4).alias("billing"),
        pl.when(pl.col("died") == "yes").then(pl.lit("2020-02-03")).alias("death_date"),
        pl.when(pl.col("died") == "yes").then(pl.lit("morgue")).otherwise(pl.lit("home")).alias("discharge"),
    )
    parts = by_hospital(frame)
    notes = tables_of(parts, TableSettings("died")).notes
    for name in ("billing", "death_date", "discharge"):
        assert any(f"column {name!r} alone predicts the label" in note for note in notes)
    assert not any("'age' alone" in note or "'sex' alone" in note for note in notes)


def test_one_class_and_a_column_missing_at_one_silo_are_pointed_out() -> None:
    parts = by_hospital(hospitals())
    parts["h1"] = parts["h1"].drop("lactate")
    parts["h2"] = parts["h2"].with_columns(pl.lit("no").alias("died"))
    found = tables_of(parts, TableSettings("died"))
    assert any("'h2' (died = no) has one class only" in note for note in found.notes)
    assert any("column 'lactate' has no value at 'h1'" in note for note in found.notes)
    made = found.fit(["h0", "h1"])
    x = made.transform(found.silos["h1"].frame)
    place = made.columns.index("lactate")
    assert made.columns[place + 1] == "lactate missing"
    assert x[:, place].eq(0).all()
    assert x[:, place + 1].eq(1).all()


def test_codes_and_zeros_that_may_mean_missing_are_pointed_out() -> None:
    frame = hospitals().with_columns(
        pl.when(pl.int_range(pl.len()) % 5 == 0).then(-9).otherwise(pl.col("lactate").abs()).alias("lactate"),
        pl.when(pl.col("hospital") == "h1").then(0).otherwise(pl.col("age") * 4).alias("chol"),
    )
    parts = by_hospital(frame)
    found = tables_of(parts, TableSettings("died"))
    assert any("-9 probably means a missing value in column 'lactate'" in note for note in found.notes)
    assert any("column 'chol' is 0 in every row of 'h1'" in note for note in found.notes)
    said = tables_of(parts, TableSettings("died", missing=("lactate=-9", "chol=0")))
    assert not any("probably means" in note or "is 0 in every row" in note for note in said.notes)
    assert {"lactate missing", "chol missing"} <= set(said.fit(["h0", "h1"]).columns)


def test_text_among_numbers_at_one_silo_is_pointed_out_and_counts_as_missing() -> None:
    parts = by_hospital(hospitals())
    parts["h0"] = parts["h0"].with_columns(
        pl.when(pl.int_range(pl.len()) == 3)
        .then(pl.lit(">90"))
        .otherwise(pl.col("age").cast(pl.String))
        .alias("age")
    )
    found = tables_of(parts, TableSettings("died"))
    made = found.fit(list(parts))
    assert any("'age' holds numbers and 1 cells of text (at 'h0'), which count as" in n for n in found.notes)
    ages = pl.concat([part["age"].cast(pl.Float64, strict=False) for part in parts.values()])
    feature = made.features[0]
    assert isinstance(feature, NumberFeature)
    assert feature.mean == pytest.approx(ages.mean())
    place = made.columns.index("age missing")
    assert made.transform(found.silos["h0"].frame)[:, place].sum() == 1


def test_the_same_column_with_text_everywhere_is_still_one_of_numbers() -> None:
    ages = ["41", "52", ">89", "63", "n/a", "70", "38"]
    frame = pl.DataFrame({"age": ages * 4, "died": [0, 1] * 14})
    made = tables_of({"a": frame, "b": frame}, TableSettings("died")).fit(["a", "b"])
    assert made.columns == ("age", "age missing")
    kept = tables_of({"a": frame}, TableSettings("died", categorical=("age",))).fit(["a"])
    assert ">89" in kept.features[0].categories  # type: ignore[union-attr]


def test_silos_of_a_column_come_in_natural_order(tmp_path: Path) -> None:
    frame = pl.DataFrame({"hospital": ["h10", "h9", "h10", "h9"], "age": [1, 2, 3, 5], "died": [0, 1, 1, 0]})
    frame.write_csv(tmp_path / "p.csv")
    assert list(read(tmp_path / "p.csv").silos) == ["h9", "h10"]


def test_clean_tables_bring_no_note() -> None:
    parts = by_hospital(hospitals())
    parts = {
        name: part.with_columns((pl.col("died") == "yes").cast(pl.Int64)) for name, part in parts.items()
    }
    assert tables_of(parts, TableSettings("died")).notes == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"label": "dead"}, "no label column 'dead'"),
        ({"silo_column": "hopital"}, "no column 'hopital' that names silos; did you mean 'hospital'"),
        ({"drop": ["agee"]}, "--drop names the column 'agee', which no file has; did you mean 'age'"),
        ({"positive": "maybe"}, "is never 'maybe'"),
        ({"label": "died>0"}, "compares numbers"),
    ],
)
def test_wrong_names_are_one_sentence(tmp_path: Path, settings: dict[str, object], sentence: str) -> None:
    hospitals().write_csv(tmp_path / "p.csv")
    with pytest.raises(DataError, match=sentence):
        read(tmp_path / "p.csv", **settings)


def test_rows_without_a_label_are_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,died\n1,0\n2,1\n3,?\n4,\n")
    found = read_tables([tmp_path / "a.csv"], label="died")
    assert len(found.silos["a"].y) == 2
    assert any("2 rows without a label" in note for note in found.notes)
