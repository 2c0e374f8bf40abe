"""Files as people have them: read for what they are, or refused with all that is wrong and where."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedilc import Federation
from fedilc.data.sources import Files
from fedilc.data.tables.file_reader import read_examples
from fedilc.errors import DataError, DataProblemsError, FedILCError


def test_identifiers_in_letters_are_told_to_be_dropped(tmp_path: Path) -> None:
    rows = "".join(f"P{row:03d},{row % 3},{row % 2}\n" for row in range(12))
    (tmp_path / "a.csv").write_text("patient,x,label\n" + rows)
    with pytest.raises(
        DataError, match=r"text that differs in every row \('P000' in line 2\), like an ident"
    ):
        read_examples(tmp_path / "a.csv", "label")


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
        read_examples(tmp_path / "a.parquet", "label")


def test_all_problems_of_a_file_are_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,z,label\n1,red,,0\n2,blue,5,maybe\n")
    with pytest.raises(DataProblemsError) as refused:
        read_examples(tmp_path / "a.csv", "label")
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
        read_examples(tmp_path / "a.npz", "y")


def test_labels_in_a_column_of_their_own_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.array([[0], [1], [0]]))
    assert read_examples(tmp_path / "a.npz", "y").y.tolist() == [0, 1, 0]


def fed(folder: Path, loss: str = "multiclass") -> Federation:
    return Files(silos="*", loss=loss).build(0, folder)


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.uint64])
def test_unsigned_class_numbers_of_an_npz_are_read(tmp_path: Path, kind: type) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((8, 1)), label=(np.arange(8) % 3).astype(kind))
    fed(tmp_path)


def test_an_npz_in_the_other_byte_order_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((8, 1), ">f8"), label=(np.arange(8) % 2).astype(">i8"))
    fed(tmp_path)


def test_an_npz_whose_x_is_one_number_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.float32(3), label=np.arange(3) % 2)
    with pytest.raises(FedILCError):
        read_examples(tmp_path / "a.npz", "label")


def test_an_npz_with_damaged_bytes_is_refused_wherever_they_are(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "a.npz", x=np.random.default_rng(0).random((90, 2)), label=np.arange(90) % 2
    )
    good = (tmp_path / "a.npz").read_bytes()
    others = set()
    for start in range(0, len(good), 10):
        spoilt = bytearray(good)
        spoilt[start : start + 20] = bytes(len(spoilt[start : start + 20]))
        (tmp_path / "a.npz").write_bytes(spoilt)
        try:
            read_examples(tmp_path / "a.npz", "label")
        except FedILCError:
            pass
        except Exception as error:
            others.add(type(error).__name__)
    assert others == set()


def test_a_label_column_that_occurs_twice_is_refused_rather_than_made_an_input(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,label,label\n" + "1,0,0\n2,1,1\n" * 9)
    with pytest.raises(FedILCError):
        read_examples(tmp_path / "a.csv", "label")
