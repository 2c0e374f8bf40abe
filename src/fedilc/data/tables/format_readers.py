"""Tables as other programs save them: Excel, Stata, SPSS, SAS, Feather and Arrow, JSON.

Excel is read by `fastexcel`, and Stata, SPSS and SAS by `pyreadstat`; both are in the extra "files".
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl

from fedilc.errors import ConfigError, DataError, listed

_EXCEL = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
_STATISTICS = {
    ".dta": "read_dta",
    ".sav": "read_sav",
    ".zsav": "read_sav",
    ".por": "read_por",
    ".sas7bdat": "read_sas7bdat",
    ".xpt": "read_xport",
}
_ARROW = (".feather", ".arrow", ".ipc")
_JSON = (".json", ".jsonl", ".ndjson")
SUFFIXES = (*_EXCEL, *_STATISTICS, *_ARROW, *_JSON)
CONVERSIONS = {
    ".rds": 'a file of R; there: write.csv(readRDS("{name}"), "{stem}.csv", row.names = FALSE) makes a table',
    ".rda": "a file of R; load it there, and save the table with write.csv(..., row.names = FALSE)",
    ".rdata": "a file of R; load it there, and save the table with write.csv(..., row.names = FALSE)",
    ".pkl": 'a pickle, which may run code; in pandas: read_pickle("{name}").to_parquet("{stem}.parquet")',
    ".pickle": 'a pickle, which may run code; in pandas: read_pickle("{name}").to_parquet("{stem}.parquet")',
    ".txt": "a text; if it is a table, rename it to {stem}.csv: separators are recognised",
    ".dat": "a file without a known format; if it is a table of text, rename it to {stem}.csv",
}
_UNNAMED = "__UNNAMED__"


def read_format(path: Path, suffix: str, notes: list[str]) -> pl.DataFrame:
    """Return the table of a file with one of `SUFFIXES`, and add notes on what was recognised."""
    try:
        if suffix in _EXCEL:
            return _read_workbook(path, notes)
        if suffix in _STATISTICS:
            return _read_statistics(path, _STATISTICS[suffix], notes)
        content = path.read_bytes()
        return _read_arrow(content) if suffix in _ARROW else _read_json(path, content, suffix)
    except (DataError, ConfigError):
        raise
    except Exception as error:
        # The parsers raise classes of their own for damaged files, which share no base class.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} cannot be read as {suffix[1:]}: {reason}") from error


def _library(name: str, path: Path) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"{path} needs {name}; install it with: pip install 'fedilc[files]'") from error


def _read_workbook(path: Path, notes: list[str]) -> pl.DataFrame:
    """Return the first sheet, without empty columns that have no name."""
    fastexcel = _library("fastexcel", path)
    content = path.read_bytes()
    sheets = fastexcel.read_excel(content).sheet_names
    if len(sheets) > 1:
        notes.append(f"{path} has {len(sheets)} sheets, and the first, {sheets[0]!r}, is read")
    frame = pl.read_excel(
        io.BytesIO(content), sheet_id=1, infer_schema_length=None, raise_if_empty=False, drop_empty_rows=True
    )
    unnamed = [name for name in frame.columns if name.startswith(_UNNAMED)]
    frame = frame.drop([name for name in unnamed if frame[name].null_count() == len(frame)])
    renamed = {name: name.strip() for name in frame.columns}
    if f"{_UNNAMED}0" in renamed:  # the row numbers of pandas
        renamed[f"{_UNNAMED}0"] = ""
    return frame.rename(renamed)


def _read_statistics(path: Path, reader: str, notes: list[str]) -> pl.DataFrame:
    """Return a table of Stata, SPSS or SAS; values that the file declares as missing are missing."""
    frame, facts = getattr(_library("pyreadstat", path), reader)(str(path), output_format="polars")
    return _with_value_labels(path, frame, facts.variable_value_labels, notes)


def _with_value_labels(
    path: Path, frame: pl.DataFrame, labels: Mapping[str, Mapping[Any, str]], notes: list[str]
) -> pl.DataFrame:
    """Return the table with names for numbers, in columns that have a name for each number.

    In a column with names for some numbers alone, such as 99 = "refused", the others are measured.
    """
    named, partly = [], []
    for name in frame.columns:
        known = labels.get(name, {})
        values = frame[name].drop_nulls().unique().to_list()
        lacking = [value for value in values if value not in known]
        if values and not lacking:
            texts = [known[value] for value in values]
            named.append(frame[name].replace_strict(values, texts, default=None, return_dtype=pl.String))
        elif len(lacking) < len(values):
            first = min(value for value in values if value in known)
            partly.append(f"{name!r} ({first:g} = {known[first]!r})")
    if partly:
        notes.append(
            f"{path} has names for some numbers only of {listed(partly)}, and these columns stay numbers; a "
            "number that means a missing value is given with `missing`"
        )
    return frame.with_columns(named)


def _read_arrow(content: bytes) -> pl.DataFrame:
    """Return a table of an Arrow file (Feather), or of an Arrow stream, which begins in another way."""
    read = pl.read_ipc if content.startswith(b"ARROW1") else pl.read_ipc_stream
    return read(io.BytesIO(content))


def _read_json(path: Path, content: bytes, suffix: str) -> pl.DataFrame:
    """Return a table of JSON: a list of rows, or a row per line."""
    if suffix == ".json" and content.lstrip()[:1] != b"[":
        raise DataError(f"{path} is not a list of rows; in pandas, to_json(orient='records') writes one")
    read = pl.read_json if suffix == ".json" else pl.read_ndjson
    return read(io.BytesIO(content), infer_schema_length=None)
