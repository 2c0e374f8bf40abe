"""Read tables as programs write them: CSV of any encoding and separator, Excel, Stata, SPSS, SAS, JSON."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedilc.errors import ConfigError, DataError, listed

MISSING = {"", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "?", ".", "-", "--", "missing", "unknown"}
_HEAD_BYTES = 1 << 16
_OTHERS = {
    b"PK": "a zip or Excel file",
    b"\xd0\xcf\x11\xe0": "an Excel file",
    b"PAR1": "a Parquet file",
    b"<": "a web page or XML",
    b"version https://git-lfs": "a Git LFS pointer",
}
_SEPARATORS = {",": "','", ";": "';'", "\t": "tabs", "|": "'|'"}
_DECIMAL_COMMA = r"^[-+]?\d+,\d+$"
_THOUSANDS = r"^[-+]?[1-9]\d{0,2},\d{3}$"
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
    ".rds": 'an R file; in R, write.csv(readRDS("{name}"), "{stem}.csv", row.names = FALSE) makes a table',
    ".rda": "an R file; load it in R, and save the table with write.csv(..., row.names = FALSE)",
    ".rdata": "an R file; load it in R, and save the table with write.csv(..., row.names = FALSE)",
    ".pkl": 'a pickle, which may run code; in pandas: read_pickle("{name}").to_parquet("{stem}.parquet")',
    ".pickle": 'a pickle, which may run code; in pandas: read_pickle("{name}").to_parquet("{stem}.parquet")',
    ".txt": "a text file; if it is a table, rename it to {stem}.csv: separators are recognised",
    ".dat": "a file without a known format; if it is a table of text, rename it to {stem}.csv",
}
_UNNAMED = "__UNNAMED__"


def read_csv(path: Path) -> tuple[pl.DataFrame, NDArray[np.int64], list[str]]:
    """Return the table, the line of the file per row, and notes on what was recognised.

    Lines count from 1, as in an editor or a spreadsheet. Lines without any value are left out.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head.strip():
        raise DataError(f"{path} is empty; leave it out or give it data")
    for start, kind in _OTHERS.items():
        if head.startswith(start):
            raise DataError(f"{path} is {kind}, not CSV; give the table itself as CSV, Parquet or NPZ")
    notes: list[str] = []
    content: bytes | None = None
    encoding = _encoding(head)
    if head.startswith(b"\x1f\x8b"):
        content = gzip.decompress(path.read_bytes())
        head = content[:_HEAD_BYTES]
    elif encoding is not None:
        content = _decoded(path, encoding)
        head = content[:_HEAD_BYTES]
        notes.append(f"{path} is in {encoding.upper()} and is read as such")
    if b"\r" in head and b"\n" not in head:
        content = (content or path.read_bytes()).replace(b"\r", b"\n")
        head = content[:_HEAD_BYTES]
    try:
        return _parsed(path, content, head, notes)
    except UnicodeDecodeError:
        content = path.read_bytes().decode("cp1252", errors="replace").encode()
        notes.append(f"{path} is not UTF-8 and is read as Windows-1252")
        return _parsed(path, content, content[:_HEAD_BYTES], notes)


def _parsed(
    path: Path, content: bytes | None, head: bytes, notes: list[str]
) -> tuple[pl.DataFrame, NDArray[np.int64], list[str]]:
    lines = head.decode(errors="replace").splitlines()
    blank = next((number for number, line in enumerate(lines) if line.strip()), 0)
    separator = _separator(lines[blank:])
    declared = re.fullmatch(r'"?sep=(.)"?', lines[blank].strip()) if lines else None
    skipped = blank
    if declared:  # a line that tells Excel the separator
        separator, skipped = declared[1], blank + 1
    source: Path | io.BytesIO = path if content is None else io.BytesIO(content)
    try:
        frame = pl.read_csv(
            source, separator=separator, infer_schema_length=None, skip_rows=1 if declared else 0, glob=False
        )
    except pl.exceptions.ComputeError as error:
        (path.read_bytes() if content is None else content).decode()  # raises if that is what is wrong
        raise DataError(f"{path} cannot be read: {_uneven(path, content, separator) or error}") from error
    if any("\ufffd" in column for column in frame.columns):
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "in the header")
    frame = frame.rename({column: column.strip() for column in frame.columns if column != column.strip()})
    if separator != ",":
        notes.append(
            f"{path} is separated by {_SEPARATORS.get(separator, repr(separator))} and is read as such"
        )
        frame = _with_decimal_commas(path, frame, notes)
    numbers = np.arange(len(frame), dtype=np.int64) + skipped + 2
    texts = frame.select(pl.col(pl.String).str.contains("\n", literal=True).any())
    if texts.width and any(texts.row(0)):
        numbers = _record_lines(path, content, separator)[-len(frame) :]
    filled = ~frame.select(pl.all_horizontal(pl.all().is_null())).to_series().to_numpy()
    return (frame, numbers, notes) if filled.all() else (frame.filter(filled), numbers[filled], notes)


def _encoding(head: bytes) -> str | None:
    """Return the encoding of a text, or None for UTF-8."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    for name, zeros in (("utf-16-le", head[1::2].count(0)), ("utf-16-be", head[::2].count(0))):
        if head and zeros > len(head) // 4:
            return name
    return None


def _decoded(path: Path, encoding: str) -> bytes:
    try:
        return path.read_bytes().decode(encoding).encode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} cannot be read: it begins like {encoding.upper()} but is not ({error.reason})"
        ) from error


def _separator(lines: list[str]) -> str:
    """Return the separator of the header and the lines after it; a comma if that is not clear."""
    bare = [re.sub(r'"[^"]*"', "", line) for line in lines[:20] if line.strip()]
    if not bare:
        return ","
    present = [mark for mark in _SEPARATORS if mark in bare[0]]
    agreed = [mark for mark in present if all(line.count(mark) == bare[0].count(mark) for line in bare)]
    if "," in (agreed or present) or not present:
        return ","
    return max(agreed or present, key=bare[0].count)


def _reader(path: Path, content: bytes | None, separator: str) -> Any:
    text = (path.read_bytes() if content is None else content).decode(errors="replace")
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator)


def _record_lines(path: Path, content: bytes | None, separator: str) -> NDArray[np.int64]:
    """Return the line on which each record begins, if texts contain ends of lines."""
    reader = _reader(path, content, separator)
    return np.array([1, *(reader.line_num + 1 for _ in reader)][:-1])


def _uneven(path: Path, content: bytes | None, separator: str) -> str | None:
    """Return which line has more fields than the first, if one has."""
    reader = _reader(path, content, separator)
    try:
        header = len(next(reader))
        for fields in islice(reader, 1_000_000):
            if len(fields) > header:
                return f"line {reader.line_num} has {len(fields)} fields but its first line has {header}"
    except (csv.Error, StopIteration):
        return None
    return None


def _with_decimal_commas(path: Path, frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Return the table with texts like 1,5 as numbers, unless they could be thousands."""
    found = []
    for column in frame.get_columns():
        if column.dtype != pl.String:
            continue
        values = column.drop_nulls().str.strip_chars()
        commas = values.filter(values.str.contains(_DECIMAL_COMMA))
        plain = values.filter(~values.str.contains(_DECIMAL_COMMA))
        plain = plain.filter(~plain.str.to_lowercase().is_in(list(MISSING)))
        if commas.is_empty() or plain.cast(pl.Float64, strict=False).null_count():
            continue
        if not commas.str.contains(_THOUSANDS).all():
            found.append(column.name)
    if not found:
        return frame
    points = [column.name for column in frame.get_columns() if column.dtype == pl.Float64]
    if points:
        raise DataError(
            f"{path} has decimal commas in column {found[0]!r} and decimal points in column {points[0]!r}; "
            "write all numbers in one way"
        )
    notes.append(f"{path} has decimal commas and is read as such")
    return frame.with_columns(pl.col(found).str.strip_chars().str.replace(",", ".", literal=True))


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
        notes.append(f"{path} has {len(sheets)} sheets; only the first, {sheets[0]!r}, is read")
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

    In a column with names for only some numbers, such as 99 = "refused", the other numbers are measurements.
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
            f"{path} has names for only some numbers of {listed(partly)}, so these columns stay numbers; "
            "declare numbers that mean a missing value with `missing`"
        )
    return frame.with_columns(named)


def _read_arrow(content: bytes) -> pl.DataFrame:
    """Return the table of an Arrow file (Feather), or of an Arrow stream, which begins differently."""
    read = pl.read_ipc if content.startswith(b"ARROW1") else pl.read_ipc_stream
    return read(io.BytesIO(content))


def _read_json(path: Path, content: bytes, suffix: str) -> pl.DataFrame:
    """Return a table of JSON: a list of rows, or a row per line."""
    if suffix == ".json" and content.lstrip()[:1] != b"[":
        raise DataError(f"{path} is not a list of rows; in pandas, to_json(orient='records') writes one")
    read = pl.read_json if suffix == ".json" else pl.read_ndjson
    return read(io.BytesIO(content), infer_schema_length=None)
