"""New rows for a trained model: files, data frames, arrays and pictures, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.prediction_rows import as_frame, as_inputs, plain_inputs, preprocessed, rows_of
from fedilc.data.tables.preprocessing import CategoryFeature, NumberFeature, Preprocessing
from fedilc.errors import DataError, FedILCWarning

LABEL = LabelRule(text="died", column="died", classes=("no", "yes"))
MADE = Preprocessing(
    label=LABEL,
    features=(
        NumberFeature(name="age", mean=50.0, scale=10.0, indicator=True),
        CategoryFeature(name="sex", categories=("f", "m")),
    ),
)
FRAME = pl.DataFrame({"age": [60, None], "sex": ["f", "m"]})


def test_a_table_is_the_same_as_a_file_a_mapping_or_a_data_frame_of_pandas(tmp_path: Path) -> None:
    FRAME.write_csv(tmp_path / "a.csv")
    FRAME.write_parquet(tmp_path / "a.parquet")
    columns = FRAME.to_dict(as_series=False)
    for given in (tmp_path / "a.csv", str(tmp_path / "a.parquet"), columns, FRAME, pd.DataFrame(columns)):
        rows, _ = rows_of(given)
        assert isinstance(rows, pl.DataFrame)
        assert preprocessed(rows, MADE, "it").tolist() == [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]]


def test_arrays_and_tensors_stay_what_they_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(2))
    for given, name in ((tmp_path / "a.npz", str(tmp_path / "a.npz")), (np.eye(2), "the array")):
        rows, where = rows_of(given)
        assert isinstance(rows, np.ndarray)
        assert (rows.tolist(), where) == (np.eye(2).tolist(), name)
    assert rows_of(torch.eye(2))[0].equal(torch.eye(2))


def test_a_folder_gives_its_pictures(tmp_path: Path) -> None:
    for name in ("b.png", "a.jpg", "notes.txt"):
        (tmp_path / name).touch()
    assert rows_of(tmp_path)[0] == [tmp_path / "a.jpg", tmp_path / "b.png"]
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="none has no pictures"):
        rows_of(tmp_path / "none")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "the table has two columns 'a'; rename or drop one"),
        ([[1, 2], [3]], "list cannot be made into rows"),
        ("gone.csv", "gone.csv does not exist"),
    ],
)
def test_what_has_no_rows_is_refused(given: object, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        rows_of(given)


def test_an_npz_file_without_inputs_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", z=np.eye(2))
    with pytest.raises(DataError, match=r"a.npz must hold the array 'x'; it holds \['z'\]"):
        rows_of(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(DataError, match="is damaged, or not an NPZ file"):
        rows_of(tmp_path / "a.npz")


def test_an_array_without_names_has_the_columns_of_training_in_order() -> None:
    values = np.array([[60, "f"]], dtype=object)
    assert as_frame(values, MADE, "it").columns == ["age", "sex"]
    with pytest.raises(
        DataError, match=r"it has rows of shape \(1,\), .* the columns age, sex; give these 2"
    ):
        as_frame(values[:, :1], MADE, "it")
    with pytest.raises(DataError, match="it cannot be made into rows of numbers"):
        as_inputs(values, "it")


def test_unknown_names_and_stray_texts_are_warned_of_and_count_as_missing() -> None:
    frame = pl.DataFrame({"age": ["60", "old"], "sex": ["f", "x"]})
    with pytest.warns(FedILCWarning) as said:
        x = preprocessed(frame, MADE, "it")
    assert [str(note.message) for note in said] == [
        "it: 'old' in column 'age' is not a number, and counts as missing (such rows: 1)",
        "it: 'x' in column 'sex' did not occur in training, and counts as unknown (such rows: 1)",
    ]
    assert x[1].tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("written", "value"), [("<60", 60), ("≥ 60", 60), ("60,5", 60.5), ("1,060.5", 1060.5)]
)
def test_a_single_row_may_have_a_limit_a_separator_or_a_decimal_comma(written: str, value: float) -> None:
    said = r"it: column 'age' has cells that (are limits such|have a thousands) .* \(such cells: 1\)"
    with pytest.warns(FedILCWarning, match=said):
        rows = preprocessed(pl.DataFrame({"age": [written], "sex": ["f"]}), MADE, "it")
    assert torch.equal(rows, preprocessed(pl.DataFrame({"age": [value], "sex": ["f"]}), MADE, "it"))


def test_infinite_numbers_of_new_rows_are_warned_of_and_count_as_missing() -> None:
    frame = pl.DataFrame({"age": [60.0, float("inf"), 1e300], "sex": ["f", "f", "f"]})
    with pytest.warns(FedILCWarning, match="it: column 'age' holds 2 numbers that are infinite or above 3e"):
        x = preprocessed(frame, MADE, "it")
    assert x[1, :2].tolist() == x[2, :2].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"agee": [1], "sex": ["f"]}, "it has no column 'age', .* did you mean 'agee'"),
        (
            {"age": ["old"], "sex": ["f"]},
            r"column 'age' holds text \('old'\), but the model was trained with",
        ),
        ({"age": ["2020-01-02"], "sex": ["f"]}, "column 'age' holds no numbers"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(columns: dict[str, list[object]], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        preprocessed(pl.DataFrame(columns), MADE, "it")


def test_plain_inputs_are_numbers_in_the_order_of_training() -> None:
    frame = pl.DataFrame({"b": [1.5, 2.5], "a": ["3", "4"]})
    assert plain_inputs(frame, ["a", "b"], "it").tolist() == [[3.0, 1.5], [4.0, 2.5]]
    with pytest.raises(DataError, match="it has no column 'c', which the model was trained with"):
        plain_inputs(frame, ["a", "c"], "it")
    with pytest.raises(DataError, match=r"column 'a' holds '\?' \(in row 2\), .* fill or drop such rows"):
        plain_inputs(frame.with_columns(a=pl.Series(["3", "?"])), ["a"], "it")
