"""New rows for a trained model: a file, a data frame or an array, checked against its inputs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedilc.data.image_folder import SUFFIXES, pictures_below
from fedilc.data.tables.column_values import (
    LARGEST,
    LIMITS,
    SEPARATORS,
    beyond,
    names_of,
    numbers_of,
    written_cells,
)
from fedilc.data.tables.file_reader import file_kind, npz_arrays, read_frame
from fedilc.data.tables.preprocessing import NumberFeature, Preprocessing
from fedilc.errors import DataError, FedILCWarning, listed, nearest

Rows = pl.DataFrame | NDArray[Any] | Tensor | list[Path]


def rows_of(table: Any) -> tuple[Rows, str]:
    """Return rows as a data frame, an array, a tensor or picture files, and their name in errors."""
    if isinstance(table, str | os.PathLike):
        path = Path(table)
        return _from_folder(path) if path.is_dir() else _from_file(path), str(path)
    if isinstance(table, pl.DataFrame):
        return table, "the table"
    if isinstance(table, Mapping):
        return pl.DataFrame(dict(table), strict=False), "the table"
    if hasattr(table, "columns") and hasattr(table, "iloc"):
        if not table.columns.is_unique:
            twice = table.columns[table.columns.duplicated()][0]
            raise DataError(f"the table has two columns {str(twice)!r}; rename or drop one")
        present = table.astype(object).where(table.notna(), None)
        columns = {str(name): present[name].tolist() for name in table.columns}
        return pl.DataFrame(columns, strict=False), "the table"
    if isinstance(table, Tensor):
        return table.detach().cpu(), "the tensor"
    try:
        return np.asarray(table), "the array"
    except (TypeError, ValueError) as error:
        raise DataError(f"{type(table).__name__} cannot be made into rows ({error})") from error


def _from_folder(folder: Path) -> list[Path]:
    found = pictures_below(folder)
    if not found:
        raise DataError(
            f"{folder} has no pictures ({', '.join(SUFFIXES)}); give a table, or a folder of them"
        )
    return found


def _from_file(path: Path) -> Rows:
    if file_kind(path) == ".npz":
        return npz_arrays(path)["x"]
    return read_frame(path)[0]


def as_inputs(array: NDArray[Any], where: str) -> Tensor:
    """Return an array of numbers as the model's inputs."""
    try:
        return torch.from_numpy(array.astype(np.float32))
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} cannot be made into rows of numbers ({error})") from error


def as_frame(array: NDArray[Any], preprocessing: Preprocessing, where: str) -> pl.DataFrame:
    """Return an array of values, which has no names, as a table with the columns of training, in order.

    If the model was trained with NPZ files, the array may have the columns that were left out as well.
    """
    names = [feature.name for feature in preprocessing.features]
    width = array.shape[1] if array.ndim == 2 else 0
    numbered = [f"x{place}" for place in range(width)]
    if set(names) < set(numbered):
        names = numbered
    if width != len(names):
        raise DataError(
            f"{where} has rows of shape {array.shape[1:]}, but the model was trained with the columns "
            f"{listed(names)}; give these {len(names)} in this order, or a table that names its columns"
        )
    return pl.DataFrame({name: array[:, place].tolist() for place, name in enumerate(names)}, strict=False)


def preprocessed(frame: pl.DataFrame, preprocessing: Preprocessing, where: str) -> Tensor:
    """Return the inputs of new rows; raise if a column is missing or wrong, warn of unknown categories."""
    _require_columns(frame, [feature.name for feature in preprocessing.features], where)
    for feature in preprocessing.features:
        kind, values = feature.read(frame[feature.name], preprocessing.missing)
        present = values.drop_nulls()
        if isinstance(feature, NumberFeature):
            for meaning in _meanings(frame[feature.name], values):
                warnings.warn(f"{where}: column {feature.name!r} {meaning}", FedILCWarning, stacklevel=4)
            wrong = present.filter(numbers_of(present).is_null())
            if kind in ("date", "other") or (len(wrong) and len(wrong) == len(present)):
                held = f"text ({wrong[0]!r})" if len(wrong) and kind == "text" else "no numbers"
                raise DataError(
                    f"{where}: column {feature.name!r} holds {held}, but the model was trained with numbers"
                )
            meaning = "is not a number, and counts as missing"
        else:
            wrong = present.filter(~names_of(present).is_in(list(feature.categories)))
            meaning = "did not occur in training, and counts as unknown"
        if len(wrong):
            warnings.warn(
                f"{where}: {wrong[0]!r} in column {feature.name!r} {meaning} (such rows: {len(wrong)})",
                FedILCWarning,
                stacklevel=4,
            )
    return preprocessing.transform(frame)


def _meanings(column: pl.Series, read: pl.Series) -> Iterator[str]:
    """Yield how cells of a column of numbers were interpreted, and how many there are."""
    if large := beyond(column):
        yield f"holds {large} numbers that are infinite or above {LARGEST:.1g}, and count as missing"
    if column.dtype == pl.String:
        for count, meaning in zip(written_cells(column, read), (LIMITS, SEPARATORS), strict=True):
            if count:
                yield f"has cells that {meaning} (such cells: {count})"


def plain_inputs(frame: pl.DataFrame, columns: Sequence[str], where: str) -> Tensor:
    """Return columns of numbers as inputs, in order; raise if one is missing or holds anything else."""
    _require_columns(frame, columns, where)
    found = []
    for name in columns:
        values = numbers_of(frame[name])
        wrong = values.is_null().arg_true()
        if len(wrong):
            raise DataError(
                f"{where}: column {name!r} holds {frame[name][wrong[0]]!r} (in row {wrong[0] + 1}), but the "
                "model was trained with numbers in every row; fill or drop such rows"
            )
        found.append(values.to_numpy())
    return torch.from_numpy(np.stack(found, axis=1).astype(np.float32))


def _require_columns(frame: pl.DataFrame, columns: Sequence[str], where: str) -> None:
    for name in columns:
        if name not in frame.columns:
            hint = nearest(name, frame.columns)
            raise DataError(f"{where} has no column {name!r}, which the model was trained with{hint}")
