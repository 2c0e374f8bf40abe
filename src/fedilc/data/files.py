"""Silos from one's own files: CSV, Parquet or NPZ, one file a silo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedilc.data.silo import Federation, LossName, Silo
from fedilc.errors import DataError, nearest
from fedilc.seeds import numpy_generator


@dataclass(frozen=True)
class Table:
    """A file's examples: float32 inputs, labels, and the names of the inputs where it has any."""

    x: NDArray[np.float32]
    y: NDArray[np.float32] | NDArray[np.int64]
    columns: tuple[str, ...] = ()


def read_table(path: Path, label: str) -> Table:
    """Read inputs and labels: the label from its column, the inputs from all other columns.

    An NPZ file holds the arrays `x` and the label's name (or `y`), and its inputs may have any shape.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; correct the path in the experiment")
    if path.suffix == ".npz":
        return _read_npz(path, label)
    if path.suffix not in (".csv", ".parquet"):
        raise DataError(f"{path} is not a .csv, .parquet or .npz file")
    try:
        frame = pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if label not in frame.columns:
        raise DataError(f"{path} has no label column {label!r}{nearest(label, frame.columns)}")
    for column in frame.columns:
        _check_column(path, frame[column])
    inputs = frame.drop(label)
    return Table(
        inputs.cast(pl.Float32).to_numpy().astype(np.float32),
        frame[label].cast(pl.Float32).to_numpy(),
        tuple(inputs.columns),
    )


def _check_column(path: Path, column: pl.Series) -> None:
    if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        raise DataError(
            f"{path}: column {column.name!r} holds {column.dtype}, not numbers; encode it or drop it"
        )
    if column.null_count():
        raise DataError(
            f"{path}: column {column.name!r} has {column.null_count()} empty cells; fill or drop them"
        )


def _read_npz(path: Path, label: str) -> Table:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = list(arrays)
            target = label if label in names else "y"
            if "x" not in names or target not in names:
                raise DataError(f"{path} must hold the arrays 'x' and {label!r}; it holds {names}")
            return Table(arrays["x"].astype(np.float32), arrays[target])
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def split(table: Table, share: float, random: np.random.Generator) -> tuple[Table, Table]:
    """Training and validation parts, each class in the same proportion."""
    held_out = np.zeros(len(table.y), dtype=bool)
    for label in np.unique(table.y):
        members = np.flatnonzero(table.y == label)
        held_out[random.permutation(members)[: round(share * len(members))]] = True
    train = Table(table.x[~held_out], table.y[~held_out], table.columns)
    return train, Table(table.x[held_out], table.y[held_out], table.columns)


def federation_from_files(
    silos: str | Mapping[str, str],
    label: str,
    test: str | None,
    loss: LossName,
    validation_share: float,
    seed: int,
    folder: Path,
) -> Federation:
    """A federation of files; paths and patterns are relative to `folder`."""
    if isinstance(silos, str):
        paths = {path.stem: path for path in sorted(folder.glob(silos))}
        if not paths:
            raise DataError(f"no file matches {silos!r} in {folder}; correct data.silos")
    else:
        paths = {name: folder / path for name, path in silos.items()}
    tables = {name: read_table(path, label) for name, path in paths.items()}
    outside = read_table(folder / test, label) if test else None
    first = next(iter(tables))
    for name, table in [*tables.items(), *([("the test set", outside)] if outside else [])]:
        _same_columns(name, table, first, tables[first])
    members = []
    for name, table in tables.items():
        random = numpy_generator(seed, "files", name, "validation")
        train, held_out = split(table, validation_share, random)
        members.append(Silo(name, train.x, train.y, held_out.x, held_out.y))
    if outside is None:
        return Federation(folder.name or "files", members, loss=loss)
    return Federation(folder.name or "files", members, outside.x, outside.y, loss=loss)


def _same_columns(name: str, table: Table, first: str, reference: Table) -> None:
    if table.columns == reference.columns:
        return
    different = sorted(set(table.columns) ^ set(reference.columns))
    what = f"columns {', '.join(different[:5])}" if different else "the order of their columns"
    raise DataError(f"{name} and {first} differ in {what}; give all files the same columns")
