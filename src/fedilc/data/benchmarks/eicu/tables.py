"""Read the raw tables of the eICU database as PhysioNet distributes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from fedilc.errors import DataError


def read_stays(folder: Path) -> pl.DataFrame:
    """Return the unit stays of `patient`, one row each: patient, hospital, time, and outcome.

    `died` is 1 for a hospital discharge status of "Expired", 0 for "Alive", and null otherwise.
    """
    columns = ("patientunitstayid", "uniquepid", "hospitalid", "hospitaldischargestatus")
    order = ("hospitaldischargeyear", "age", "patienthealthsystemstayid", "unitvisitnumber")
    path, table = _scan(folder, "patient", (*columns, *order))
    status = _text("hospitaldischargestatus").str.to_lowercase()
    with _reading(path):
        stays = table.select(
            stay=_number("patientunitstayid"),
            patient=_text("uniquepid"),
            hospital=_number("hospitalid"),
            died=status.replace_strict({"expired": 1, "alive": 0}, default=None, return_dtype=pl.UInt8),
            year=_number("hospitaldischargeyear"),
            age=_age(),
            hospital_stay=_number("patienthealthsystemstayid"),
            visit=_number("unitvisitnumber"),
        ).collect()
    for column, name in zip(("stay", "patient", "hospital"), columns, strict=False):
        wrong = stays[column].is_null().arg_true()
        if len(wrong):
            raise DataError(f"{path} has no {name} in row {wrong[0] + 1}; complete or remove such rows")
    twice = stays.filter(pl.col("stay").is_duplicated())
    if len(twice):
        raise DataError(f"{path} lists the stay {twice['stay'][0]} more than once; keep one row per stay")
    return stays


def read_regions(folder: Path) -> pl.DataFrame:
    """Return the hospitals whose region is in `hospital`."""
    path, table = _scan(folder, "hospital", ("hospitalid", "region"))
    with _reading(path):
        regions = table.select(hospital=_number("hospitalid"), silo=_text("region")).drop_nulls().collect()
    return regions.unique("hospital", keep="first", maintain_order=True)


def gather_orders(folder: Path, work: Path) -> pl.LazyFrame:
    """Return the orders of `medication`, copied to a smaller file in `work` that is fast to read again."""
    path, orders = scan_orders(folder)
    small = work / "orders.parquet"
    with _reading(path):
        orders.sink_parquet(small)
    return pl.scan_parquet(small, glob=False)


def scan_orders(folder: Path) -> tuple[Path, pl.LazyFrame]:
    """Return the file of `medication` and a lazy table of its orders.

    Every step of the query works on a batch of rows at a time, so that memory does not grow with the
    table, compressed or not. A missing `code` is 0 and a missing `name` empty, because joins skip nulls.
    Names are in lower case with single spaces.
    """
    wanted = ("patientunitstayid", "drughiclseqno", "drugname", "drugordercancelled")
    path, table = _scan(folder, "medication", wanted)
    code = _number("drughiclseqno")
    return path, table.select(
        stay=_number("patientunitstayid"),
        code=pl.when(code > 0).then(code).otherwise(0),
        name=_text("drugname").str.to_lowercase().str.replace_all(r"\s+", " ").fill_null(""),
        cancelled=(_text("drugordercancelled").str.to_lowercase() == "yes").fill_null(False),
    )


def _scan(folder: Path, table: str, columns: Sequence[str]) -> tuple[Path, pl.LazyFrame]:
    """Return the file of a table and a lazy table of the wanted columns, all as text."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the one that holds eICU's tables")
    files = [folder / f"{table}{ending}" for ending in (".csv", ".csv.gz")]
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        raise DataError(f"{folder} holds no {table}.csv or {table}.csv.gz; put eICU's table {table} there")
    with _reading(path):
        frame = pl.scan_csv(path, infer_schema=False, encoding="utf8-lossy", glob=False)
        found = {name.strip().lower(): name for name in frame.collect_schema().names()}
    missing = [column for column in columns if column not in found]
    if missing:
        raise DataError(f"{path} lacks the columns {', '.join(missing)}; it must be eICU's table {table}")
    return path, frame.select(pl.col(found[column]).alias(column) for column in columns)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise an error that names the file if polars cannot read it."""
    try:
        yield
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} cannot be read: {reason}; if it is damaged, fetch it again") from error


def _text(column: str) -> pl.Expr:
    """Return a column's text without outer spaces; null if it is empty."""
    text = pl.col(column).str.strip_chars()
    # `replace("", None)` says the same, but polars would hold the whole column in memory for it.
    return pl.when(text != "").then(text)


def _age() -> pl.Expr:
    """Return the age in years; eICU writes ages of 90 and more as "> 89"."""
    hidden = pl.col("age").str.contains(">", literal=True)
    return pl.col("age").str.extract(r"(\d+)").cast(pl.Int64) + hidden.cast(pl.Int64)


def _number(column: str) -> pl.Expr:
    """Return a column's whole numbers, even if written as 2812.0; null if it has none."""
    return pl.col(column).str.strip_chars().cast(pl.Float64, strict=False).cast(pl.Int64, strict=False)
