"""Prepare eICU's raw tables: one row per patient, with the medicines ordered and the outcome."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedilc.errors import ConfigError, DataError, nearest, writing

_PATIENTS_AT_A_TIME = 10_000
SILO_BY = ("hospital", "region")


def prepare(
    folder: Path,
    out: Path,
    *,
    silo_by: str = "hospital",
    silos: int = 58,
    min_patients: int = 50,
    medicines: int = 1399,
    min_uses: int = 1,
    keep_cancelled: bool = False,
) -> PreparationReport:
    """Write the table of patients from eICU's `patient` and `medication` (and `hospital`, for regions).

    The table has the columns `silo`, `died` (0/1) and one 0/1 column per medicine, and no identifier.

    Args:
        folder: holds the raw tables as .csv or .csv.gz.
        out: the Parquet file to write, with its report beside it; both are written atomically.
        silo_by: "hospital", or "region" if hospitals are too small, as in the open demo.
        silos: how many silos to keep, those with the most patients.
        min_patients: leave out silos with fewer patients.
        medicines: how many medicines to keep, those ordered for the most patients.
        min_uses: leave out medicines ordered for fewer patients.
        keep_cancelled: whether to count cancelled orders too.
    """
    limits = {"silos": silos, "min_patients": min_patients, "medicines": medicines, "min_uses": min_uses}
    _check(silo_by, limits, out)
    report = PreparationReport({"silo_by": silo_by, **limits, "keep_cancelled": keep_cancelled})
    stays = _stays(folder, silo_by)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".eicu-", dir=out.parent) as name:
            work = Path(name)
            orders = gather_orders(folder, work)
            stays = _count_orders(stays, orders, keep_cancelled, report)
            patients = _enough_patients(_first_stays(stays, report), report)
            table = _table(patients, orders.filter(_usable(keep_cancelled)), report)
            table.write_parquet(work / "table")
            (work / "report").write_text(report.json(), encoding="utf-8")
            (work / "report").replace(report_file(out))
            (work / "table").replace(out)
    return report


@dataclass
class PreparationReport:
    """What a preparation found, what it dropped and why, and what it kept.

    The first of `steps` counts what the tables hold, the last what is kept, the others what was dropped.
    `known_by` counts orders by how their medicine was identified, `medicines` counts the medicines found,
    dropped and kept, `silos` the patients and deaths of each silo, largest first; `columns` has the most
    frequent name of each medicine's column.
    """

    settings: dict[str, Any]
    steps: list[Count] = field(default_factory=list)
    known_by: dict[str, int] = field(default_factory=dict)
    medicines: dict[str, int] = field(default_factory=dict)
    patients_with_no_kept_medicine: int = 0
    silos: dict[str, dict[str, int]] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)

    def json(self) -> str:
        """Return the report as the text of its file."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Count:
    """The number of orders, stays and patients that one step found, dropped or kept."""

    what: str
    orders: int = 0
    stays: int = 0
    patients: int = 0


def report_file(out: Path) -> Path:
    """Return the path of the report of a prepared table, beside it."""
    return out.with_suffix(".report.json")


def _check(silo_by: str, limits: dict[str, int], out: Path) -> None:
    if silo_by not in SILO_BY:
        raise ConfigError(f"silo_by={silo_by!r} is unknown{nearest(silo_by, SILO_BY)}")
    for name, limit in limits.items():
        if limit < 1:
            raise ConfigError(f"{name}={limit} is too small; give 1 or more")
    if out.suffix != ".parquet" or out.is_dir():
        raise ConfigError(f"{out} cannot be the name of the table; give a file that ends in .parquet")


def _stays(folder: Path, silo_by: str) -> pl.DataFrame:
    """Return the unit stays, each with its silo if it has one."""
    stays = read_stays(folder)
    if stays["died"].is_null().all():
        raise DataError(
            f"the patient table in {folder} has no outcomes: hospitaldischargestatus is nowhere Alive or "
            "Expired; give the table as eICU has it"
        )
    if silo_by == "region":
        return stays.join(read_regions(folder), on="hospital", how="left")
    return stays.with_columns(silo=pl.format("hospital-{}", "hospital"))


def _usable(keep_cancelled: bool) -> pl.Expr:
    """Return the condition that an order counts and says what was ordered."""
    named = (pl.col("code") > 0) | (pl.col("name") != "")
    return named if keep_cancelled else named & ~pl.col("cancelled")


def _count_orders(
    stays: pl.DataFrame, orders: pl.LazyFrame, keep_cancelled: bool, report: PreparationReport
) -> pl.DataFrame:
    """Return the stays with the number of their usable orders; the report counts the other orders."""
    usable, cancelled = _usable(keep_cancelled), pl.lit(not keep_cancelled) & pl.col("cancelled")
    sums = {"cancelled": cancelled.sum(), "nameless": (~usable & ~cancelled).sum(), "orders": usable.sum()}
    counts = orders.group_by("stay").agg(pl.len().alias("found"), **sums).collect(engine="streaming")
    found, dropped, nameless = (int(counts[name].sum()) for name in ("found", "cancelled", "nameless"))
    unlisted = counts.join(stays, on="stay", how="anti")
    if not found:
        raise DataError("the medication table holds no order; give the whole table")
    report.steps += [
        Count("found in the tables", found, len(stays), stays["patient"].n_unique()),
        Count("orders that were cancelled", dropped),
        Count("orders with neither code nor name", nameless),
        Count("orders of a stay that patient does not list", int(unlisted["orders"].sum())),
    ]
    counted = stays.join(counts.select("stay", "orders"), on="stay", how="left")
    return counted.with_columns(pl.col("orders").fill_null(0).cast(pl.Int64))


def _first_stays(stays: pl.DataFrame, report: PreparationReport) -> pl.DataFrame:
    """Return each patient's first stay that has an outcome, an order and a silo.

    eICU has no dates. Hospital stays of one patient are ordered by year and age, and a stay that ended in
    death is the last; otherwise their identifiers decide, which is arbitrary but reproducible. Unit stays
    inside a hospital stay are numbered.
    """
    stays = _keep(stays, pl.col("died").is_not_null(), "stays without a hospital outcome", report)
    stays = _keep(stays, pl.col("orders") > 0, "stays without an order left", report)
    if report.settings["silo_by"] == "region":
        stays = _keep(stays, pl.col("silo").is_not_null(), "stays in a hospital of unknown region", report)
    stays = stays.sort("year", "age", "died", "hospital_stay", "visit", "stay", nulls_last=True)
    return _keep(stays, pl.col("patient").is_first_distinct(), "later stays of the same patient", report)


def _enough_patients(patients: pl.DataFrame, report: PreparationReport) -> pl.DataFrame:
    """Return the patients of the silos that are large enough, ordered by hospital and stay."""
    kind, least, most = (report.settings[key] for key in ("silo_by", "min_patients", "silos"))
    sizes = patients.group_by("silo").agg(patients=pl.len(), died=pl.col("died").cast(pl.Int64).sum())
    sizes = sizes.sort("patients", "silo", descending=[True, False])
    large = sizes.filter(pl.col("patients") >= least)
    if not len(sizes):
        raise DataError(f"no patient is left: none has an outcome, an order and a {kind}; check both tables")
    if not len(large):
        other = ", or make silos of regions with `silo_by=region`" if kind == "hospital" else ""
        raise DataError(
            f"no {kind} has {least} patients or more (the largest has {sizes['patients'][0]}); lower "
            f"`min_patients`{other}"
        )
    few, many = f"{kind}s with fewer than {least} patients", f"{kind}s beyond the {most} largest"
    patients = _keep(patients, pl.col("silo").is_in(large["silo"].implode()), few, report)
    large = large.head(most)
    patients = _keep(patients, pl.col("silo").is_in(large["silo"].implode()), many, report)
    report.steps.append(Count("kept", *_size(patients)))
    report.silos = {row.pop("silo"): row for row in large.to_dicts()}
    return patients.sort("hospital", "stay")


def _keep(stays: pl.DataFrame, condition: pl.Expr, otherwise: str, report: PreparationReport) -> pl.DataFrame:
    """Return the stays that meet a condition; the report counts the others."""
    kept = stays.filter(condition)
    dropped = (before - after for before, after in zip(_size(stays), _size(kept), strict=True))
    report.steps.append(Count(otherwise, *dropped))
    return kept


def _size(stays: pl.DataFrame) -> tuple[int, int, int]:
    return int(stays["orders"].sum()), len(stays), stays["patient"].n_unique()


def _table(patients: pl.DataFrame, orders: pl.LazyFrame, report: PreparationReport) -> pl.DataFrame:
    """Return one row per patient: silo, outcome, and the medicines ordered."""
    catalogue = read_catalogue(orders)
    known = catalogue.group_by("known_by").agg(pl.col("orders").sum()).sort("orders", descending=True)
    report.known_by = dict(known.rows())
    uses = find_uses(patients["stay"], orders, catalogue)
    kept = uses.most_frequent(report.settings["medicines"], report.settings["min_uses"])
    found = len(set(uses.columns.tolist()))
    report.medicines = {"found": found, "dropped": found - len(kept.medicines), "kept": len(kept.medicines)}
    report.patients_with_no_kept_medicine = len(patients) - len(set(kept.rows.tolist()))
    named = catalogue.filter(pl.col("name") != "").sort("orders", "name", descending=[True, False])
    names = dict(named.unique("medicine", keep="first").select("medicine", "name").rows())
    report.columns = {medicine: names.get(medicine, "") for medicine in kept.medicines}
    facts = {"silo": patients["silo"], "died": patients["died"]}
    return pl.DataFrame({**facts, **kept.columns_of(len(patients))})


def read_catalogue(orders: pl.LazyFrame) -> pl.DataFrame:
    """Return the medicine of each (code, name) that was ordered, how it is known, and the number of orders.

    The code identifies the medicine. An order with only a name gets the code that the same name has in other
    orders, if that is always the same one; otherwise the name itself is the medicine.

    >>> orders = pl.LazyFrame({"code": [2812, 0, 0], "name": ["warfarin", "warfarin", "honey"]})
    >>> read_catalogue(orders).sort("orders", "name", "code")["medicine"].to_list()
    ['name-honey', 'hicl-2812', 'hicl-2812']
    """
    pairs = orders.group_by("code", "name").agg(orders=pl.len()).collect(engine="streaming")
    named = pairs.filter((pl.col("code") > 0) & (pl.col("name") != ""))
    single = named.group_by("name").agg(known=pl.col("code").first(), codes=pl.col("code").n_unique())
    single = single.filter(pl.col("codes") == 1).drop("codes")
    coded, known = pl.col("code") > 0, pl.col("known").is_not_null()
    code = pl.when(coded).then("code").otherwise("known")
    how = pl.when(coded).then(pl.lit("its own code")).when(known).then(pl.lit("the code of its name"))
    return pairs.join(single, on="name", how="left").select(
        *("code", "name", "orders"),
        medicine=pl.when(coded | known)
        .then(pl.format("hicl-{}", code))
        .otherwise(pl.format("name-{}", "name")),
        known_by=how.otherwise(pl.lit("its name alone")),
    )


@dataclass(frozen=True)
class Uses:
    """The medicines of each patient: `columns[i]` was ordered for patient `rows[i]`, each pair once."""

    medicines: list[str]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    def most_frequent(self, most: int, least_uses: int) -> Uses:
        """Return only the `most` medicines that were ordered for the most patients, most frequent first."""
        uses = np.bincount(self.columns, minlength=len(self.medicines))
        order = np.lexsort((np.array(self.medicines), -uses))
        chosen = order[uses[order] >= least_uses][:most]
        if not len(chosen):
            raise DataError(
                f"no medicine was ordered for {least_uses} patients or more (the most frequent for "
                f"{uses.max(initial=0)}); lower `min_uses`"
            )
        index = np.full(len(self.medicines), -1)
        index[chosen] = np.arange(len(chosen))
        kept = index[self.columns] >= 0
        return Uses([self.medicines[i] for i in chosen], self.rows[kept], index[self.columns[kept]])

    def columns_of(self, patients: int) -> dict[str, NDArray[np.uint8]]:
        """Return one 0/1 column per medicine."""
        matrix = np.zeros((len(self.medicines), patients), dtype=np.uint8)
        matrix[self.columns, self.rows] = 1
        return dict(zip(self.medicines, matrix, strict=True))


def find_uses(stays: pl.Series, orders: pl.LazyFrame, catalogue: pl.DataFrame) -> Uses:
    """Return the medicines ordered in these stays, one stay per patient; patients are read in slices."""
    numbers = catalogue.select(pl.col("medicine").unique().sort()).with_row_index("column")
    entries = catalogue.join(numbers, on="medicine").select("code", "name", "column").lazy()
    rows = pl.DataFrame({"stay": stays}).with_row_index("row")
    pairs = [
        orders.join(some.lazy(), on="stay")
        .join(entries, on=["code", "name"])
        .select("row", "column")
        .unique()
        .collect(engine="streaming")
        for some in rows.iter_slices(_PATIENTS_AT_A_TIME)
    ]
    both = pl.concat(pairs).cast(pl.Int64).sort("row", "column")
    return Uses(numbers["medicine"].to_list(), both["row"].to_numpy(), both["column"].to_numpy())


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
