"""CSV as programs write it: it is read for what it is, or refused with the cause and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedilc.data.tables.file_reader import read_examples
from fedilc.errors import DataError

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
    table = read_examples(tmp_path / "a.csv", "label")
    assert table.columns == ("age", "dose")
    assert (table.x.tolist(), table.y.tolist()) == ([[61.0, 1.5], [47.0, 2.25]], [0.0, 1.0])
    assert [note in said for said in table.notes[-1:]] == ([True] if note else [])


def test_names_in_windows_letters_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("größe,label\n1,0\n2,1\n".encode("cp1252"))
    table = read_examples(tmp_path / "a.csv", "label")
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
        ("x,label\n1,0\n1,2,3\n", "line 3 has 3 fields but its first line has 2"),
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
        read_examples(tmp_path / "a.csv", "label")


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
        read_examples(tmp_path / "a.csv", "label")
