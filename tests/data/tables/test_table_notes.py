"""What is unusual in tables is pointed out with its column and silo."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hospitals import patients

from fedilc.data.checks.notes import grouped
from fedilc.data.tables.preprocessing import NumberFeature
from fedilc.data.tables.silo_tables import read_tables, tables_of
from fedilc.data.tables.table_settings import TableSettings


def by_hospital(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {str(n[0]): p.drop("hospital") for n, p in frame.partition_by("hospital", as_dict=True).items()}


def test_an_identifier_is_left_out_and_said_unless_it_is_kept() -> None:
    frame = patients().with_columns(
        pl.int_range(pl.len()).alias("patient"),
        pl.int_range(pl.len()).cast(pl.String).str.zfill(5).add("x").alias("code"),
    )
    parts = by_hospital(frame)
    found = tables_of(parts, TableSettings(label="died"))
    assert "patient" not in found.fit(["h0", "h1"]).columns
    said = (
        "2 columns ('patient', 'code') are left out, each because it differs in every row, or is called, "
        "like an identifier"
    )
    assert f"{said} (`keep` keeps one)" in found.notes
    kept = tables_of(parts, TableSettings(label="died", keep=("patient",)))
    assert "patient" in kept.fit(["h0", "h1"]).columns


def test_columns_that_tell_the_label_are_pointed_out() -> None:
    frame = patients().with_columns(
        (pl.col("died") == "yes").cast(pl.Int64).add(pl.col("age") / 1e4).alias("billing"),
        pl.when(pl.col("died") == "yes").then(pl.lit("2020-02-03")).alias("death_date"),
        pl.when(pl.col("died") == "yes").then(pl.lit("morgue")).otherwise(pl.lit("home")).alias("discharge"),
    )
    parts = by_hospital(frame)
    found = tables_of(parts, TableSettings(label="died"))
    assert found.leaks == ("billing", "discharge")
    assert any("column 'death_date', which is left out, alone predicts the label" in n for n in found.notes)
    assert [
        note.rpartition(" use ")[2] for note in found.notes if "2 columns ('billing' AUROC 1.000" in note
    ] == ['`drop = ["billing", "discharge"]`']
    assert found.strongest[0] == ("billing", 1.0)


def test_a_column_leaks_if_it_does_at_most_silos_where_it_varies() -> None:
    frame, died = patients(silos=5), pl.col("died") == "yes"
    here = pl.col("hospital")
    frame = frame.with_columns(
        pl.when(here == "h0").then(1).otherwise(died.cast(pl.Int64)).alias("diagnosis"),
        pl.when((here == "h1") & ~died).then(2).when(~died).then(None).otherwise(3).alias("subscore"),
        pl.when(here.is_in(["h0", "h1", "h2"])).then(pl.col("age")).otherwise(died * 100.0).alias("local"),
    )
    found = tables_of(by_hospital(frame), TableSettings(label="died"))
    assert found.leaks == ("diagnosis", "subscore")
    (note,) = [note for note in found.notes if "'diagnosis'" in note]
    assert "2 columns ('diagnosis' AUROC 1.000, 'subscore' AUROC 1.000) alone predict the label" in note


def test_few_cases_at_one_silo_are_no_proof_of_a_leak() -> None:
    frame = patients().with_row_index("row")
    few = pl.DataFrame({"lab": [1.0] * 3 + [0.0] * 27, "died": ["yes"] * 3 + ["no"] * 27})
    others = {name: part.drop("row") for name, part in by_hospital(frame).items()}
    assert tables_of({**others, "small": few}, TableSettings(label="died")).leaks == ()


def test_a_column_with_a_few_wrong_cells_still_tells_the_label_and_one_of_many_names_does_not() -> None:
    frame = patients().with_row_index("row")
    expired = (pl.col("died") == "yes") & (pl.col("row") % 40 > 0)
    frame = frame.with_columns(
        pl.when(expired).then(pl.lit("expired")).otherwise(pl.lit("home")).alias("discharge status"),
        (pl.col("row") * 7 % 19).cast(pl.String).add("x").alias("bed"),
    )
    found = tables_of(by_hospital(frame), TableSettings(label="died"))
    assert found.leaks == ("discharge status",)
    assert any(
        note.endswith('if it is not known before the outcome, use `drop = ["discharge status"]`')
        for note in found.notes
    )


def test_a_column_of_one_value_is_left_out_and_said_unless_some_cells_are_missing() -> None:
    frame = patients().with_columns(
        pl.lit(0.1).alias("unit"),
        pl.lit("A").alias("country"),
        pl.when(pl.int_range(pl.len()) % 3 > 0).then(1).alias("ticked"),
    )
    found = tables_of(by_hospital(frame), TableSettings(label="died"))
    made = found.fit(list(found.silos))
    assert {"unit", "country"} <= set(made.left_out)
    assert {"ticked", "ticked missing"} <= set(made.columns)
    said = "2 columns ('unit', 'country') are left out, each because it has the same value in every row"
    assert said in found.notes


def test_one_class_and_a_column_missing_at_one_silo_are_pointed_out() -> None:
    parts = by_hospital(patients())
    parts["h1"] = parts["h1"].drop("lactate")
    parts["h2"] = parts["h2"].with_columns(pl.lit("no").alias("died"))
    found = tables_of(parts, TableSettings(label="died"))
    assert any("'h2' (died = no) has only one class" in note for note in found.notes)
    assert any("column 'lactate' has no value at 'h1'" in note for note in found.notes)
    made = found.fit(["h0", "h1", "h2"])
    x = made.transform(found.silos["h1"].frame)
    place = made.columns.index("lactate")
    assert made.columns[place + 1] == "lactate missing"
    assert x[:, place].eq(0).all()
    assert x[:, place + 1].eq(1).all()


def test_a_column_that_most_silos_lack_is_left_out_unless_the_settings_name_it() -> None:
    parts = by_hospital(patients())
    only, *others = parts
    parts = {only: parts[only]} | {name: parts[name].drop("lactate") for name in others}
    found = tables_of(parts, TableSettings(label="died"))
    assert "lactate" not in found.fit(list(parts)).columns
    note = (
        f"column 'lactate' is left out: only {only!r} of {len(parts)} silos has it, which is not a majority"
    )
    assert any(note in said for said in found.notes)
    kept = tables_of(parts, TableSettings(label="died", keep=("lactate",)))
    assert "lactate" in kept.fit(list(parts)).columns


def test_codes_and_zeros_that_may_mean_missing_are_pointed_out() -> None:
    frame = patients().with_columns(
        pl.when(pl.int_range(pl.len()) % 5 == 0).then(-9).otherwise(pl.col("lactate").abs()).alias("lactate"),
        pl.when(pl.col("hospital") == "h1").then(0).otherwise(pl.col("age") * 4).alias("chol"),
    )
    parts = by_hospital(frame)
    found = tables_of(parts, TableSettings(label="died"))
    assert any("-9 probably means a missing value in column 'lactate'" in note for note in found.notes)
    assert any("column 'chol' is 0 in every row of 'h1'" in note for note in found.notes)
    said = tables_of(parts, TableSettings(label="died", missing=("lactate=-9", "chol=0")))
    assert not any("probably means" in note or "is 0 in every row" in note for note in said.notes)
    assert {"lactate missing", "chol missing"} <= set(said.fit(["h0", "h1"]).columns)


def test_text_among_numbers_at_one_silo_is_pointed_out_and_counts_as_missing() -> None:
    parts = by_hospital(patients())
    parts["h0"] = parts["h0"].with_columns(
        pl.when(pl.int_range(pl.len()) == 3)
        .then(pl.lit("old"))
        .otherwise(pl.col("age").cast(pl.String))
        .alias("age")
    )
    found = tables_of(parts, TableSettings(label="died"))
    made = found.fit(list(parts))
    assert any("'age' holds numbers and 1 cell of text (in 'h0'), which counts as" in n for n in found.notes)
    ages = pl.concat([part["age"].cast(pl.Float64, strict=False) for part in parts.values()])
    feature = made.features[0]
    assert isinstance(feature, NumberFeature)
    assert feature.mean == pytest.approx(ages.mean())
    place = made.columns.index("age missing")
    assert made.transform(found.silos["h0"].frame)[:, place].sum() == 1


def test_clean_tables_bring_no_note() -> None:
    parts = by_hospital(patients())
    parts = {
        name: part.with_columns((pl.col("died") == "yes").cast(pl.Int64)) for name, part in parts.items()
    }
    assert tables_of(parts, TableSettings(label="died")).notes == []


def test_rows_without_a_label_are_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,died\n1,0\n2,1\n3,?\n4,\n")
    found = read_tables([tmp_path / "a.csv"], TableSettings(label="died"))
    assert len(found.silos["a"].y) == 2
    assert any("2 rows without a label" in note for note in found.notes)


def test_a_note_names_the_setting_that_keeps_a_column() -> None:
    parts = by_hospital(patients().with_columns(pl.int_range(pl.len()).alias("patient no")))
    notes = tables_of(parts, TableSettings(label="died")).findings
    said = "column 'patient no' is left out: it differs in every row, or is called, like an identifier"
    assert f'{said} (`keep = ["patient no"]` keeps it)' in grouped(notes)


def test_a_word_that_may_mean_missing_is_a_category_at_a_silo_that_has_nothing_else() -> None:
    stroke = pl.when((pl.col("hospital") != "h0") & (pl.col("sex") == "male")).then(pl.lit("stroke"))
    frame = patients().with_columns(stroke.otherwise(pl.lit("none")).alias("history"))
    found = tables_of(by_hospital(frame), TableSettings(label="died"))
    assert "column 'history' has no value other than 'none' at 'h0'" in found.notes
    made = found.fit(["h0", "h1"])
    rows = made.transform(frame.with_columns(age=pl.lit(None)))
    alone = made.transform(frame.filter(pl.col("hospital") == "h0").with_columns(age=pl.lit(None)))
    none = made.columns.index("history=none")
    assert alone[:, none].tolist() == [1.0] * len(alone)
    assert rows[:, none].tolist() == (frame["history"] == "none").cast(pl.Float64).to_list()


def test_numbers_that_float64_cannot_tell_apart_are_not_called_the_same_value() -> None:
    frame = patients().with_columns(
        pl.lit(1e25).add(pl.int_range(pl.len())).alias("serial"), pl.lit(7).alias("seven")
    )
    notes = tables_of(by_hospital(frame), TableSettings(label="died")).notes
    assert any("'serial' is left out: its numbers are the same in the first 15 digits;" in n for n in notes)
    assert any("'seven' is left out: it has the same value in every row" in n for n in notes)


def test_a_silo_with_few_rows_of_a_class_is_not_said_to_have_one_class_only() -> None:
    frames = {
        f"h{site}": pl.DataFrame(
            {"age": [site + row % 9 for row in range(60)], "died": [1] * few + [0] * (60 - few)}
        )
        for site, few in enumerate((3, 30, 0))
    }
    notes = tables_of(frames, TableSettings(label="died")).notes
    assert "'h0' has few rows of the other class; AUROC needs at least 10 of each" in notes
    assert "'h2' (died = 0) has only one class and so no AUROC" in notes
