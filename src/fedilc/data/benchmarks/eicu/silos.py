"""The eICU federation from a table of patients: the largest silos train, the others are the test."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedilc.data.benchmarks.eicu.preparation import prepare
from fedilc.data.silo import Federation, Silo, held_out_rows
from fedilc.errors import ConfigError, DataError
from fedilc.seeds import numpy_generator


@dataclass(frozen=True)
class PatientTable:
    """One row per patient: the silo, whether the patient died, and 0/1 per medicine."""

    silo: NDArray[np.str_]
    died: NDArray[np.uint8]
    x: NDArray[np.uint8]


def read_patients(path: Path) -> PatientTable:
    """Return the table that `fedilc data eicu` wrote."""
    try:
        frame = pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read: {reason}; make it with `fedilc data eicu`") from error
    medicines = frame.drop("silo", "died", strict=False)
    right = {"silo", "died"} <= set(frame.columns) and frame["silo"].dtype == pl.String
    numbers = frame.drop("silo", strict=False)
    if not right or not medicines.width or any(dtype != pl.UInt8 for dtype in numbers.dtypes):
        raise DataError(
            f"{path} is not a table of patients: it needs the columns silo (text), died and one per medicine "
            "(0/1, unsigned bytes); make it with `fedilc data eicu`"
        )
    if not len(frame) or any(frame.null_count().row(0)) or max(numbers.max().row(0)) > 1:
        raise DataError(
            f"{path} is empty or holds other values than 0 and 1; make it with `fedilc data eicu`"
        )
    return PatientTable(
        frame["silo"].to_numpy().astype(np.str_), frame["died"].to_numpy(), medicines.to_numpy()
    )


def read_demo(folder: Path) -> PatientTable:
    """Return the patients of eICU's open demo, prepared from its raw tables.

    Regions are silos, because the demo has about ten patients per hospital; medicines with fewer than five
    patients are left out.
    """
    if not folder.is_dir():
        raise DataError(
            f"eICU's demo is not in {folder}; get it with `fedilc data fetch eicu-demo`, or put its tables "
            "patient, medication and hospital there"
        )
    with tempfile.TemporaryDirectory(prefix="fedilc-") as work:
        table = Path(work) / "eicu-demo.parquet"
        prepare(folder, table, silo_by="region", min_uses=5)
        return read_patients(table)


def eicu_federation(
    table: PatientTable,
    seed: int = 0,
    name: str = "eicu",
    silos: int = 20,
    equal_sizes: bool = True,
    oversample: bool = True,
    validation_share: float = 0.3,
    subset: float = 1.0,
) -> Federation:
    """Return a federation whose largest silos train; all patients of the others are the test.

    Args:
        table: the patients.
        seed: of every random choice below.
        name: of the federation.
        silos: how many silos train.
        equal_sizes: cut each to the size of the smallest of them, as the paper's authors did.
        oversample: repeat training examples of the rarer outcome, drawn with replacement, until both
            outcomes are equally frequent; a silo with one outcome stays unchanged.
        validation_share: the share of each silo's patients for validation, with the same share of deaths.
        subset: the share of each training silo that is used.
    """
    names, sizes = np.unique(table.silo, return_counts=True)
    order = np.lexsort((names, -sizes))
    if not 1 <= silos < len(names):
        raise ConfigError(
            f"silos={silos} cannot train: the table has {len(names)}, and one must be left for the test"
        )
    chosen = order[:silos]
    members = []
    for index in chosen:
        random = numpy_generator(seed, name, str(names[index]), "split")
        rows = random.permutation(np.flatnonzero(table.silo == names[index]))
        rows = rows[: sizes[chosen].min() if equal_sizes else None]
        rows = np.sort(rows[: max(1, round(subset * len(rows)))])
        x, y = table.x[rows].astype(np.float32), table.died[rows].astype(np.float32)
        held_out = held_out_rows(y, validation_share, random)
        train = np.flatnonzero(~held_out)
        train = _balanced(train, y, random) if oversample else train
        members.append(Silo(str(names[index]), x[train], y[train], x[held_out], y[held_out]))
    outside = ~np.isin(table.silo, names[chosen])
    x_test, y_test = table.x[outside].astype(np.float32), table.died[outside].astype(np.float32)
    return Federation(name, members, x_test, y_test, loss="binary")


def _balanced(
    rows: NDArray[np.intp], y: NDArray[np.float32], random: np.random.Generator
) -> NDArray[np.intp]:
    """Return rows, followed by repeated ones of the rarer outcome."""
    rarer, other = sorted((rows[y[rows] == label] for label in (0, 1)), key=len)
    repeats = random.choice(rarer, len(other) - len(rarer)) if len(rarer) else rarer
    return np.concatenate([rows, repeats])
