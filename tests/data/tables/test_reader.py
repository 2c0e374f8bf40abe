"""Files as people have them: read for what they are, or refused with all that is wrong and where."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedilc.data.tables.reader import read_table
from fedilc.errors import DataError, DataProblemsError

PLAIN = "age,dose,label\n61,1.5,0\n47,2.25,1\n"


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (PLAIN.encode(), None),
        (PLAIN.encode("utf-8-sig"), None),
        (PLAIN.replace("\n", "\r\n").encode(), None),
        (PLAIN.replace("\n", "\r").encode(), None),
        (PLAIN.replace(",", " , ").encode(), None),
        ((PLAIN + "\n\n").encode(), None),
        (("\n" + PLAIN).encode(), None),
        (PLAIN.replace("\n", ",\n").encode(), None),
        (PLAIN.replace(",", ";").encode(), "is separated by ';' and is read as such"),
        (PLAIN.replace(",", "\t").encode(), "is separated by tabs and is read as such"),
        (PLAIN.replace(",", "|").encode(), "is separated by '|' and is read as such"),
        (PLAIN.encode("utf-16"), "is in UTF-16 and is read as such"),
        (PLAIN.encode("utf-16-le"), "is in UTF-16-LE and is read as such"),
        (PLAIN.replace(",", ";").replace(".", ",").encode(), "has decimal commas and is read as such"),
        (("sep=;\n" + PLAIN.replace(",", ";")).encode(), "is separated by ';' and is read as such"),
        (
            b",age,dose,label\n0,61,1.5,0\n1,47,2.25,1\n",
            "a first column without a name that numbers its rows",
        ),
        (b"Unnamed: 0,age,dose,label\n7,61,1.5,0\n9,47,2.25,1\n", "the column 'Unnamed: 0' that numbers"),
    ],
    ids=[
        *("plain", "bom", "crlf", "cr", "spaces", "blank end", "blank start", "trailing commas", "semicolon"),
        *("tab", "bar", "utf-16", "utf-16 without mark", "decimal commas", "sep=", "index", "unnamed"),
    ],
)
def test_a_csv_is_read_as_what_it_is_and_says_what_was_recognised(
    tmp_path: Path, content: bytes, note: str | None
) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    table = read_table(tmp_path / "a.csv", "label")
    assert table.columns == ("age", "dose")
    assert (table.x.tolist(), table.y.tolist()) == ([[61.0, 1.5], [47.0, 2.25]], [0.0, 1.0])
    assert [note in said for said in table.notes[-1:]] == ([True] if note else [])


def test_names_in_windows_letters_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("größe,label\n1,0\n2,1\n".encode("cp1252"))
    table = read_table(tmp_path / "a.csv", "label")
    assert table.columns == ("größe",)
    assert "Windows-1252" in table.notes[0]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            "63.0,1.0,145.0,0\n67.0,1.0,160.0,2\n",
            "no line with the names of its columns; add one as its first",
        ),
        ("age dose label\n61 1.5 0\n", "is probably separated by spaces; save it with commas"),
        ("x;label\n1,234;0\n5,678;1\n", r"column 'x' holds text, not numbers \('1,234' in line 2\)"),
        ("x;y;label\n1,5;2.5;0\n", "decimal commas in column 'x' and decimal points in column 'y'"),
        ("x,label\n1,0\n1,2,3\n", "line 3 has 3 fields and its first line 2"),
        ("x,,label\n1,a,0\n", "has a column without a name"),
        ("x,label\n\n1,0\n?,1\n?,0\n", r"column 'x' has 2 missing values \('\?' in line 4\)"),
        ("x,label\n1,0\n\n,1\n", r"column 'x' has an empty cell \(first in line 4\)"),
        ('x,said,label\n1,"well\nno",0\n,"yes\nno",1\n', r"column 'x' has an empty cell \(first in line 4\)"),
        ("x,label\n1,0\n1e300,1\n", r"holds 1e\+300 \(in line 3\), which is too large for float32"),
        ("x,label\n1,0\ninf,1\n", r"an infinity \(first in line 3\)"),
    ],
)
def test_a_csv_that_cannot_be_used_is_told_the_cause_and_the_line(
    tmp_path: Path, content: str, sentence: str
) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(DataError, match=sentence):
        read_table(tmp_path / "a.csv", "label")


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04 book",
        b"PAR1 table",
        b"<!DOCTYPE html><p>Sign in",
        b"version https://git-lfs.github.com/spec/v1",
    ],
    ids=["excel", "parquet", "web page", "git lfs"],
)
def test_another_kind_of_file_with_the_name_of_a_csv_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"a.csv is a .*, not CSV; give the table itself"):
        read_table(tmp_path / "a.csv", "label")


def test_identifiers_in_letters_are_told_to_be_dropped(tmp_path: Path) -> None:
    rows = "".join(f"P{row:03d},{row % 3},{row % 2}\n" for row in range(12))
    (tmp_path / "a.csv").write_text("patient,x,label\n" + rows)
    with pytest.raises(
        DataError, match=r"text that differs in every row \('P000' in line 2\), like an ident"
    ):
        read_table(tmp_path / "a.csv", "label")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pl.Series(["low", "high"], dtype=pl.Categorical), "text, not numbers"),
        (pl.Series(["low", "high"], dtype=pl.Enum(["low", "high"])), "text, not numbers"),
        (pl.Series([[1], [2, 3]]), "lists"),
        (pl.Series([[1, 2], [2, 3]], dtype=pl.Array(pl.Int64, 2)), "lists"),
        (pl.Series([{"a": 1}, {"a": 2}]), "structs"),
        (pl.Series([datetime.date(2020, 1, 1)] * 2), "dates or times"),
        (pl.Series([datetime.datetime(2020, 1, 1)] * 2), "dates or times"),
        (pl.Series([datetime.timedelta(1)] * 2), "dates or times"),
        (pl.Series([b"a", b"b"]), "Binary"),
    ],
    ids=["categorical", "enum", "list", "array", "struct", "date", "datetime", "duration", "bytes"],
)
@pytest.mark.parametrize("place", ["odd", "label"])
def test_a_parquet_column_that_holds_no_numbers_is_named(
    tmp_path: Path, values: pl.Series, kind: str, place: str
) -> None:
    others = {"x": [1.0, 2.0], "label": [0, 1], "odd": [1, 2]}
    pl.DataFrame(others | {place: values}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=f"a.parquet: column '{place}' holds {kind}"):
        read_table(tmp_path / "a.parquet", "label")


def test_all_problems_of_a_file_are_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,z,label\n1,red,,0\n2,blue,5,maybe\n")
    with pytest.raises(DataProblemsError) as refused:
        read_table(tmp_path / "a.csv", "label")
    assert [problem.split("column ")[1][:3] for problem in refused.value.problems] == ["'y'", "'z'", "'la"]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": np.array([["a"], ["b"]]), "y": np.arange(2)}, "'x' holds <U1, not numbers"),
        ({"x": np.zeros((2, 3)), "y": np.array(["a", "b"])}, "'y' holds <U1, not numbers"),
        ({"x": np.zeros((2, 3), complex), "y": np.arange(2)}, "'x' holds complex128"),
        ({"x": np.zeros(2), "y": np.arange(2)}, r"'x' has shape \(2,\); give \(examples, inputs\)"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0)}, "'x' is empty"),
        ({"x": np.zeros((2, 3)), "y": np.eye(2)}, r"such as y.argmax\(1\)"),
        ({"x": np.array([[1.0], [np.nan]]), "y": np.arange(2)}, r"a NaN, .* \(first in x\[1\]\)"),
        ({"x": np.zeros((2, 1)), "y": np.array([0, np.inf])}, r"\(first in y\[1\]\)"),
    ],
)
def test_arrays_that_cannot_be_used_are_named(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=f"a.npz: .*{sentence}"):
        read_table(tmp_path / "a.npz", "y")


def test_labels_in_a_column_of_their_own_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.array([[0], [1], [0]]))
    assert read_table(tmp_path / "a.npz", "y").y.tolist() == [0, 1, 0]
