"""Silos from one's own files: CSV, Parquet or NPZ, one file a silo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

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
        csv = path.suffix == ".csv"
        frame = pl.read_csv(path, infer_schema_length=None) if csv else pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    for column in frame.columns:
        original = column.rpartition("_duplicated_")[0]
        if original in frame.columns:
            raise DataError(f"{path} has two columns {original!r}; drop or rename one")
    if label not in frame.columns:
        raise DataError(f"{path} has no label column {label!r}{nearest(label, frame.columns)}")
    if frame.is_empty() or len(frame.columns) < 2:
        missing = "example" if frame.is_empty() else f"column beside {label!r}"
        raise DataError(f"{path} is empty: it holds no {missing}; leave it out or give it data")
    for column in frame.columns:
        _check_column(path, frame[column])
    inputs = frame.drop(label)
    return Table(
        np.array(inputs.cast(pl.Float32).to_numpy(), dtype=np.float32),
        np.array(frame[label].cast(pl.Float32).to_numpy()),
        tuple(inputs.columns),
    )


def _check_column(path: Path, column: pl.Series) -> None:
    if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        wrong = column.cast(pl.Float64, strict=False).is_null().arg_true()
        where = f", {str(column[wrong[0]])!r} in row {wrong[0] + 1}" if len(wrong) else ""
        raise DataError(
            f"{path}: column {column.name!r} holds {column.dtype}, not numbers{where}; "
            "encode, fill or drop it"
        )
    if column.null_count():
        raise DataError(
            f"{path}: column {column.name!r} has {column.null_count()} empty cells; fill or drop them"
        )
    wrong = column.cast(pl.Float64).is_finite().not_().arg_true()
    if len(wrong):
        raise DataError(
            f"{path}: column {column.name!r} holds a NaN or an infinity (first in row {wrong[0] + 1}); "
            "remove or fill such values"
        )


def _read_npz(path: Path, label: str) -> Table:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = list(arrays)
            target = label if label in names else "y"
            if "x" not in names or target not in names:
                raise DataError(f"{path} must hold the arrays 'x' and {label!r}; it holds {names}")
            x, y = arrays["x"].astype(np.float32), arrays[target]
    except DataError:
        raise
    except Exception as error:
        # NumPy lets through whatever its zip, zlib and header parsers raise on a damaged file.
        raise DataError(f"{path} cannot be read: it is damaged, or no NPZ file of numbers") from error
    if y.dtype.kind not in "biuf" or x.ndim == 0:
        raise DataError(
            f"{path} must hold numbers, examples first, in 'x' and one label an example in {target!r}"
        )
    y = y.astype(np.float32 if y.dtype.kind == "f" else np.int64)
    if y.ndim != 1 or len(x) != len(y):
        raise DataError(
            f"{path}: {target!r} has shape {y.shape} but 'x' has {len(x)} examples; give one label an example"
        )
    return Table(x, y)


def split(table: Table, share: float, random: np.random.Generator) -> tuple[Table, Table]:
    """Training and validation parts, each class in the same proportion."""
    held_out = np.zeros(len(table.y), dtype=bool)
    for label in np.unique(table.y):
        members = np.flatnonzero(table.y == label)
        held_out[random.permutation(members)[: round(share * len(members))]] = True
    train = Table(table.x[~held_out], table.y[~held_out], table.columns)
    return train, Table(table.x[held_out], table.y[held_out], table.columns)


def silo_of(name: str, table: Table, validation_share: float, seed: int) -> Silo:
    """A silo of a table's examples, some of them held out for validation."""
    random = numpy_generator(seed, "files", name, "validation")
    train, held_out = split(table, validation_share, random)
    return Silo(name, train.x, train.y, held_out.x, held_out.y)


@dataclass(frozen=True)
class SiloFiles:
    """Which files hold the silos, and how they are read; paths and patterns are relative to a folder."""

    silos: str | Mapping[str, str]
    label: str
    test: str | None
    loss: LossName
    validation_share: float

    def paths(self, folder: Path) -> dict[str, Path]:
        """The file of each silo."""
        named = matching(self.silos, folder) if isinstance(self.silos, str) else self.silos
        return {name: folder / path for name, path in named.items()}

    def outside(
        self, folder: Path, first: str, columns: Sequence[str]
    ) -> tuple[NDArray[Any], NDArray[Any]] | tuple[None, None]:
        """Inputs and labels of the test set, with the first silo's columns; nothing where there is none."""
        if not self.test:
            return None, None
        table = same_columns("the test set", read_table(folder / self.test, self.label), first, columns)
        return table.x, table.y

    def federation(self, seed: int, folder: Path) -> Federation:
        """All silos, in memory."""
        tables = {name: read_table(path, self.label) for name, path in self.paths(folder).items()}
        first = next(iter(tables))
        columns = tables[first].columns
        x_test, y_test = self.outside(folder, first, columns)
        tables = {name: same_columns(name, table, first, columns) for name, table in tables.items()}
        members = [silo_of(name, table, self.validation_share, seed) for name, table in tables.items()]
        return Federation(folder.name or "files", members, x_test, y_test, self.loss)


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
    return SiloFiles(silos, label, test, loss, validation_share).federation(seed, folder)


def matching(pattern: str, folder: Path) -> dict[str, str]:
    """The files of a pattern by their shortest names that differ."""
    matches = glob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207 - Path.glob refuses absolute ones
    found = [Path(path) for path in sorted(matches)]
    found = [path for path in found if (folder / path).is_file()]
    if not found:
        raise DataError(f"no file matches {pattern!r} in {folder}; correct data.silos")
    for names in ([p.stem for p in found], [str(p.with_suffix("")) for p in found], [str(p) for p in found]):
        if len(set(names)) == len(names):
            break
    return dict(zip(names, map(str, found), strict=True))


def same_columns(name: str, table: Table, first: str, reference: Sequence[str]) -> Table:
    """The table with its columns in the order of the reference."""
    if table.columns == tuple(reference):
        return table
    lacks = [column for column in reference if column not in table.columns]
    more = [column for column in table.columns if column not in reference]
    if lacks or more:
        said = [f"lacks {', '.join(lacks)}"] if lacks else []
        said += [f"has {', '.join(more)} besides"] if more else []
        raise DataError(
            f"{name} and {first} differ: {name} {' and '.join(said)}; give all files the same columns"
        )
    order = [table.columns.index(column) for column in reference]
    return Table(table.x[:, order], table.y, tuple(reference))
