"""Tables of Excel, Stata, SPSS, Arrow and JSON give the rows of the same table as CSV."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyreadstat
import pytest
import xlsxwriter

from fedilc.data.tables.file_reader import read_frame
from fedilc.data.tables.prediction_rows import rows_of
from fedilc.data.tables.silo_tables import read_tables
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import ConfigError, DataError

FRAME = pl.DataFrame(
    {
        "age": [61.5, 58.0, None, 70.25] * 10,
        "ward": ["a", "b", "b", "a"] * 10,
        "seen": [datetime.date(2024, 1, 31)] * 40,
        "died": [0, 1, 1, 0] * 10,
    }
)
WRITERS: dict[str, Callable[[pl.DataFrame, str], object]] = {
    "xlsx": pl.DataFrame.write_excel,
    "dta": pyreadstat.write_dta,
    "sav": pyreadstat.write_sav,
    "xpt": pyreadstat.write_xport,
    "feather": pl.DataFrame.write_ipc,
    "arrow": pl.DataFrame.write_ipc_stream,
    "json": pl.DataFrame.write_json,
    "jsonl": pl.DataFrame.write_ndjson,
}


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_gives_the_inputs_of_csv(tmp_path: Path, suffix: str) -> None:
    FRAME.write_csv(tmp_path / "a.csv")
    file = tmp_path / f"a [1].{suffix}"
    WRITERS[suffix](FRAME, str(file))
    settings = TableSettings(label="died")
    expected = read_tables([tmp_path / "a.csv"], settings)
    found = read_tables([file], settings)
    made, same = found.fit(["a [1]"]), expected.fit(["a"])
    assert made.features == same.features
    assert made.left_out == {"seen": "it holds dates or times"}
    new, _ = rows_of(file)
    assert isinstance(new, pl.DataFrame)
    assert made.transform(new).equal(same.transform(expected.silos["a"].frame))
    assert found.silos["a [1]"].y.tolist() == expected.silos["a"].y.tolist()


@pytest.mark.parametrize("suffix", ["sav", "dta"])
def test_names_of_all_numbers_of_a_column_replace_them(tmp_path: Path, suffix: str) -> None:
    frame = pl.DataFrame(
        {"sex": [1.0, 2.0, None, 2.0], "pain": [0.0, 4.0, 10.0, 7.0], "died": [0.0, 1.0, 1.0, 0.0]}
    )
    labels = {
        "sex": {1: "male", 2: "female", 3: "other"},
        "pain": {0: "none", 10: "worst"},
        "died": {0: "no", 1: "yes"},
    }
    WRITERS[suffix](frame, str(tmp_path / f"a.{suffix}"), variable_value_labels=labels)
    found, _, unit, notes = read_frame(tmp_path / f"a.{suffix}")
    assert found["sex"].to_list() == ["male", "female", None, "female"]
    assert found["pain"].to_list() == [0, 4, 10, 7]
    assert found["died"].to_list() == ["no", "yes", "yes", "no"]
    assert unit == "row"
    assert notes == [
        f"{tmp_path}/a.{suffix} has names for only some numbers of 'pain' (0 = 'none'), so these columns "
        "stay numbers; declare numbers that mean a missing value with `missing`"
    ]


def test_values_that_spss_declares_as_missing_are_missing(tmp_path: Path) -> None:
    frame = pl.DataFrame({"job": [1.0, 2.0, 8.0, 9.0], "died": [0.0, 1.0, 1.0, 0.0]})
    ranges = {"job": [{"lo": 8, "hi": 9}]}
    pyreadstat.write_sav(frame, tmp_path / "a.sav", missing_ranges=ranges)
    assert read_frame(tmp_path / "a.sav")[0]["job"].to_list() == [1, 2, None, None]


def test_the_first_sheet_of_a_workbook_is_read_and_named_without_index_and_empty_columns(
    tmp_path: Path,
) -> None:
    with xlsxwriter.Workbook(tmp_path / "a.xlsx") as book:
        sheet = book.add_worksheet("Data")
        rows = [
            ["", "age ", "", "died"],
            [0, 61, "", 1],
            [1, "<5", "", 0],
            ["", "", "", ""],
            [2, 58.5, "", 1],
        ]
        for number, row in enumerate(rows):
            sheet.write_row(number, 0, row)
        book.add_worksheet("Codes").write(0, 0, "nothing")
    frame, numbers, _, notes = read_frame(tmp_path / "a.xlsx", "died")
    assert frame.columns == ["age", "died"]
    assert frame["age"].to_list() == ["61", "<5", "58.5"]
    assert len(numbers) == 3
    assert notes[0] == f"{tmp_path}/a.xlsx has 2 sheets; only the first, 'Data', is read"


@pytest.mark.parametrize(("suffix", "library"), [("xlsx", "fastexcel"), ("dta", "pyreadstat")])
def test_without_its_library_a_file_says_what_to_install(
    tmp_path: Path, suffix: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[suffix](FRAME, str(tmp_path / f"a.{suffix}"))
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        ConfigError, match=rf"a\.{suffix} needs {library}; install it with: pip install 'fedilc\[files\]'"
    ):
        read_frame(tmp_path / f"a.{suffix}")


@pytest.mark.parametrize("suffix", [*WRITERS, "xls", "sas7bdat", "por"])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a.{suffix}").write_bytes(b"[ARROW1 is not here")
    with pytest.raises(DataError, match=f"a.{suffix} cannot be read") as error:
        read_frame(tmp_path / f"a.{suffix}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "a.rds",
            r'a\.rds is an R file; in R, write\.csv\(readRDS\("a\.rds"\), "a\.csv", row\.names = FALSE\)',
        ),
        ("a.RData", "is an R file; load it in R"),
        ("a.pkl", "may run code; in pandas"),
        ("a.mat", "is not a table; give .csv, .xlsx"),
        ("a.json", "is not a list of rows"),
    ],
)
def test_what_is_not_read_says_how_to_convert_it(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / name).write_text('{"age": {"0": 61}}')
    with pytest.raises(DataError, match=sentence):
        read_frame(tmp_path / name)
