"""Read the examples of one file: a table, whose text `formats.py` parses (CSV, Excel, ...), or arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedilc.data.checks.columns import is_identifier
from fedilc.data.tables.column_values import number_of
from fedilc.data.tables.formats import CONVERSIONS, MISSING, SUFFIXES, read_csv, read_format
from fedilc.errors import ConfigError, DataError, DataProblemsError, listed, nearest

_INDEX_NAMES = ("", "Unnamed: 0", "__index_level_0__")
_MOST_COLUMNS = 12
_KINDS = (".csv", ".tsv", ".parquet", ".npz", *SUFFIXES)
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Examples:
    """A file's examples.

    Args:
        x: inputs in float32, examples first.
        y: one label per example.
        columns: the names of the inputs, if the file has names.
        numbers: the line or row of the file that each example is from.
        unit: what those numbers count, such as "line".
        identifiers: columns that only identify rows.
        notes: sentences on what was recognised or left out.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float32] | NDArray[np.int64]
    columns: tuple[str, ...] = ()
    numbers: NDArray[np.int64] | None = None
    unit: str = "row"
    identifiers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def where(self, example: int) -> str:
        """Return the place of an example in its file."""
        return f"{self.unit} {example if self.numbers is None else self.numbers[example]}"


def read_examples(path: Path, label: str) -> Examples:
    """Read inputs and labels: the label from its column, the inputs from all other columns.

    An NPZ file holds the arrays `x` and the label's name (or `y`), and its inputs may have any shape.
    """
    if file_kind(path) == ".npz":
        return read_npz(path, label)
    return examples_of(str(path), label, *read_frame(path, label))


def is_table_name(path: Path) -> bool:
    """Return whether a file, which need not exist, has the suffix of a table."""
    return _suffix(path) in (*_KINDS, *CONVERSIONS)


def _suffix(path: Path) -> str:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def file_kind(path: Path) -> str:
    """Return the suffix of a file, which is its kind; raise if it is not a table."""
    if not path.exists():
        raise DataError(f"{path} does not exist; correct the path")
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file; name the files in it")
    suffix = _suffix(path)
    if suffix in CONVERSIONS:
        raise DataError(f"{path} is {CONVERSIONS[suffix].format(name=path.name, stem=path.stem)}")
    if suffix not in _KINDS:
        raise DataError(
            f"{path} is not a table; give .csv, .xlsx, .parquet, .dta, .sav, .feather, .json or .npz files, "
            "such as '*.csv'"
        )
    return suffix


def read_frame(
    path: Path, label: str | None = None
) -> tuple[pl.DataFrame, NDArray[np.int64], str, list[str]]:
    """Return a table, the line or row of the file per row, the unit of these numbers, and notes.

    If a label is given, it must be a column, and every column must have a name of its own.
    """
    notes: list[str] = []
    suffix = file_kind(path)
    lines: NDArray[np.int64] | None = None
    try:
        if suffix == ".parquet":
            frame = pl.read_parquet(path, glob=False)
        elif suffix in SUFFIXES:
            frame = read_format(path, suffix, notes)
        else:
            frame, lines, notes = read_csv(path)
    except (DataError, ConfigError):
        raise
    except (pl.exceptions.PolarsError, OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    frame = _without_index(path, frame, label, notes)
    if label is not None:
        check_header(path, frame, label)
    if lines is not None:
        return frame, lines, "line", notes
    return frame, np.arange(1, len(frame) + 1), "row", notes


def _without_index(path: Path, frame: pl.DataFrame, label: str | None, notes: list[str]) -> pl.DataFrame:
    """Return the table without the row numbers of pandas or R, and without empty unnamed columns."""
    for name in _INDEX_NAMES:
        if name not in frame.columns or name == label:
            continue
        column = frame[name]
        if column.dtype.is_integer() and column.n_unique() == len(column) and not column.null_count():
            where = "a first column without a name" if not name else f"the column {name!r}"
            notes.append(f"{path} has {where} that numbers its rows, which is left out")
            frame = frame.drop(name)
        elif not name and column.null_count() == len(column):
            frame = frame.drop(name)
    return frame


def check_header(path: Path, frame: pl.DataFrame, label: str) -> None:
    """Raise if the first line does not name each column once, the label among them."""
    names = frame.columns
    cells = [name.split("_duplicated_")[0] for name in names]
    if label not in names and all(cell.strip() in MISSING or number_of(cell) is not None for cell in cells):
        raise DataError(f"{path} has no line with the names of its columns; add one as its first line")
    for column in names:
        original, mark, _ = column.rpartition("_duplicated_")
        if mark and original in names:
            raise DataError(f"{path} has two columns {original!r}; drop or rename one")
    if "" in names:
        raise DataError(f"{path} has a column without a name; name it or drop it")
    if label not in names:
        raise DataError(_no_label(path, frame, label))
    if frame.is_empty() or len(names) < 2:
        missing = "example" if frame.is_empty() else f"column beside {label!r}"
        raise DataError(f"{path} is empty: it holds no {missing}; leave it out or give it data")


def _no_label(path: Path, frame: pl.DataFrame, label: str) -> str:
    """Return why the label was not found: another separator, or no such column."""
    names = frame.columns
    fields = (
        {len(str(text).split()) for text in (*names, *frame.to_series(0)[:5])} if len(names) == 1 else {1}
    )
    if len(fields) == 1 and fields != {1}:
        return f"{path} is probably separated by spaces; save it with commas instead"
    if label == "label":
        return (
            f"{path} has no column 'label'; name the label's column with `label`, one of {listed(names, 8)}"
        )
    return f"{path} has no label column {label!r}{nearest(label, names)}"


def examples_of(
    place: str, label: str, frame: pl.DataFrame, numbers: NDArray[np.int64], unit: str, notes: Sequence[str]
) -> Examples:
    """Return the numbers of a table as they are; raise the problems of all columns, with their place."""
    problems: list[str] = []
    columns: dict[str, NDArray[np.float64]] = {}
    for column in frame.get_columns():
        try:
            columns[column.name] = _numbers(column, numbers, unit)
        except DataError as error:
            problems.append(f"{place}: column {column.name!r} {error}")
    if problems:
        hidden = len(problems) - _MOST_COLUMNS
        more = [f"{place}: {hidden} more columns cannot be used"] if hidden > 0 else []
        raise DataProblemsError([*problems[:_MOST_COLUMNS], *more], columns.get(label))
    y = columns.pop(label).astype(np.float32)
    same = [name for name, values in columns.items() if is_identifier(name, frame[name].dtype, values)]
    return Examples(
        np.stack(list(columns.values()), axis=1, dtype=np.float32, casting="same_kind"),
        y,
        tuple(columns),
        numbers,
        unit,
        tuple(same),
        tuple(notes),
    )


def _numbers(column: pl.Series, places: NDArray[np.int64], unit: str) -> NDArray[np.float64]:
    """Return the column's numbers, or raise its problem."""
    kind = column.dtype
    if kind in (pl.Categorical, pl.Enum, pl.String):
        column = _from_text(column.cast(pl.String), places, unit)
    elif not (kind.is_numeric() or kind in (pl.Boolean, pl.Null)):
        raise DataError(f"holds {_kind(kind)}, not numbers; encode or drop it")
    if column.null_count():
        first = f"{unit} {places[column.is_null().arg_true()[0]]}"
        count = "an empty cell" if column.null_count() == 1 else f"{column.null_count()} empty cells"
        raise DataError(f"has {count} (first in {first}); fill or drop them")
    values = column.cast(pl.Float64).to_numpy()
    wrong = np.flatnonzero(~(np.abs(values) <= _LARGEST))
    if len(wrong):
        value, where = values[wrong[0]], f"{unit} {places[wrong[0]]}"
        if np.isfinite(value):
            raise DataError(f"holds {value:g} (in {where}), which is too large for float32; scale it")
        raise DataError(f"holds a NaN or an infinity (first in {where}); remove or fill such values")
    return values


def _from_text(column: pl.Series, places: NDArray[np.int64], unit: str) -> pl.Series:
    """Return numbers that were written as text, or raise an error that names the first other cell."""
    stripped = column.str.strip_chars()
    values = stripped.str.strip_prefix("+").cast(pl.Float64, strict=False)
    wrong = (values.is_null() & stripped.is_not_null()).arg_true()
    if not len(wrong):
        return values
    texts = stripped.gather(wrong)
    text = texts[0] if len(texts[0]) <= 30 else f"{texts[0][:30]}..."
    first = f"{text!r} in {unit} {places[wrong[0]]}"
    if texts.str.to_lowercase().is_in(list(MISSING)).all():
        missing = len(wrong) + stripped.null_count()
        count = "a missing value" if missing == 1 else f"{missing} missing values"
        raise DataError(f"has {count} ({first}); fill or drop them")
    words = stripped.str.contains("[A-Za-z]").sum()
    if words == len(column) == column.n_unique() and len(column) >= 10:
        raise DataError(f"holds text that differs in every row ({first}), like an identifier; drop it")
    raise DataError(f"holds text, not numbers ({first}); encode, fill or drop it")


def _kind(kind: pl.DataType) -> str:
    if isinstance(kind, pl.List | pl.Array):
        return "lists"
    if isinstance(kind, pl.Struct):
        return "structs"
    if kind.is_temporal():
        return "dates or times"
    return str(kind)


def npz_arrays(path: Path, label: str | None = None) -> dict[str, NDArray[Any]]:
    """Return the array `x` of an NPZ file, and the label, under its name or as `y`, if it is asked for."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = list(arrays)
            wanted = ["x"] if label is None else ["x", label if label in names else "y"]
            if not set(wanted) <= set(names):
                needed = "the array 'x'" if label is None else f"the arrays 'x' and {label!r}"
                raise DataError(f"{path} must hold {needed}; it holds {names}")
            return {name: np.atleast_1d(arrays[name]) for name in wanted}
    except DataError:
        raise
    except Exception as error:
        # NumPy passes on whatever its zip, zlib and header parsers raise for a damaged file.
        raise DataError(f"{path} cannot be read: it is damaged, or not an NPZ file of numbers") from error


def read_npz(path: Path, label: str) -> Examples:
    """Return the examples of an NPZ file: the array `x`, and the label under its name or `y`."""
    (_, x), (target, y) = npz_arrays(path, label).items()
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    problems = [f"{path}: {problem}" for problem in _array_problems(x, y, target)]
    if problems:
        raise DataProblemsError(problems)
    y = y.astype(np.float32 if y.dtype.kind == "f" else np.int64)
    return Examples(x.astype(np.float32), y, unit="example")


def _array_problems(x: NDArray[np.generic], y: NDArray[np.generic], target: str) -> list[str]:
    problems = [
        f"{name!r} holds {array.dtype}, not numbers; encode it"
        for name, array in (("x", x), (target, y))
        if array.dtype.kind not in "biuf"
    ]
    if x.ndim == 0 or x.size == 0:
        problems.append("'x' is empty: it holds no example; leave the file out or give it data")
    elif x.ndim == 1:
        problems.append(f"'x' has shape {x.shape}; give (examples, inputs), such as x[:, None]")
    if x.ndim and y.ndim == 2 and len(x) == len(y):
        problems.append(
            f"{target!r} has shape {y.shape}; give one label per example, such as {target}.argmax(1)"
        )
    elif x.ndim and (y.ndim != 1 or len(x) != len(y)):
        problems.append(
            f"{target!r} has shape {y.shape} but 'x' has {len(x)} examples; give one label per example"
        )
    if problems:
        return problems
    for name, array in (("x", x), (target, y)):
        wrong = ~np.isfinite(array) | (np.abs(array) > _LARGEST) if array.dtype.kind == "f" else np.False_
        if wrong.any():
            first = int(np.argmax(wrong.reshape(len(array), -1).any(1)))
            problems.append(
                f"{name!r} holds a NaN, an infinity or a number too large for float32 (first in "
                f"{name}[{first}]); remove or fill such values"
            )
    return problems


def same_columns(name: str, examples: Examples, first: str, reference: Sequence[str]) -> Examples:
    """Return the examples with their columns in the order of the reference."""
    if examples.columns == tuple(reference):
        return examples
    if not (examples.columns and reference):
        named, other = (first, name) if reference else (name, first)
        raise DataError(
            f"{named} names its columns but {other} does not; give all silos in files of one kind"
        )
    lacks = [column for column in reference if column not in examples.columns]
    more = [column for column in examples.columns if column not in reference]
    if lacks or more:
        parts = [f"lacks {listed(lacks, 8)}"] if lacks else []
        parts += [f"also has {listed(more, 8)}"] if more else []
        raise DataError(
            f"{name} and {first} differ: {name} {' and '.join(parts)}; give all files the same columns"
        )
    order = [examples.columns.index(column) for column in reference]
    return replace(examples, x=examples.x[:, order], columns=tuple(reference))
