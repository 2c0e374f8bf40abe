"""eICU's raw tables: one row a patient, a report that adds up, and a sentence for what cannot be used."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from real_data import real_data
from slow_eicu import slow_table

from fedilc.errors import ConfigError, DataError
from fedilc.paper.eicu_tables import PreparationReport, prepare, report_file

STAY = {
    "patienthealthsystemstayid": 1,
    "age": "60",
    "hospitalid": 7,
    "hospitaldischargeyear": 2014,
    "hospitaldischargestatus": "Alive",
    "unitvisitnumber": 1,
}
ORDER = {"drugordercancelled": "No", "drugname": "", "drughiclseqno": ""}


def stay(number: int, patient: str, **more: Any) -> dict[str, Any]:
    return {**STAY, "patientunitstayid": number, "uniquepid": patient, **more}


def order(stay: int, code: int | str = "", name: str = "", **more: Any) -> dict[str, Any]:
    return {**ORDER, "patientunitstayid": stay, "drughiclseqno": code, "drugname": name, **more}


def write(folder: Path, **tables: Sequence[Mapping[str, Any]]) -> Path:
    """Raw tables as the database gives them out; a name that ends in _gz is compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        text = pl.DataFrame(rows, infer_schema_length=None).cast(pl.String).write_csv()
        if name.endswith("_gz"):
            (folder / f"{name.removesuffix('_gz')}.csv.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"{name}.csv").write_text(text)
    return folder


def prepared(folder: Path, **settings: Any) -> tuple[pl.DataFrame, PreparationReport]:
    out = folder / "out" / "eicu.parquet"
    report = prepare(folder, out, **{"min_patients": 1, **settings})
    return pl.read_parquet(out), report


def medicines_of(table: pl.DataFrame, row: int = 0) -> set[str]:
    return {name for name in table.columns[2:] if table[name][row]}


def dropped(report: PreparationReport) -> dict[str, tuple[int, int, int]]:
    return {step.what: (step.orders, step.stays, step.patients) for step in report.steps[1:-1]}


def test_a_patient_is_a_row_of_silo_outcome_and_one_column_a_medicine(tmp_path: Path) -> None:
    write(
        tmp_path,
        patient=[stay(1, "a"), stay(2, "b", hospitaldischargestatus="Expired", hospitalid=9)],
        medication=[order(1, 5), order(1, 5), order(1, 6), order(2, 6)],
    )
    table, _ = prepared(tmp_path)
    assert table.rows() == [("hospital-7", 0, 1, 1), ("hospital-9", 1, 1, 0)]
    assert table.columns == ["silo", "died", "hicl-6", "hicl-5"]
    assert set(table.dtypes[1:]) == {pl.UInt8}


@pytest.mark.parametrize("silo_by", ["hospital", "region"])
def test_compressed_tables_say_the_same_as_plain_ones(tmp_path: Path, silo_by: str) -> None:
    patients = [stay(n, f"p{n}", hospitalid=n % 3) for n in range(30)]
    orders = [order(n, n % 5 + 1) for n in range(30)]
    hospitals = [{"hospitalid": n, "region": f"R{n}"} for n in range(3)]
    plain = write(tmp_path / "plain", patient=patients, medication=orders, hospital=hospitals)
    packed = write(tmp_path / "gz", patient_gz=patients, medication_gz=orders, hospital_gz=hospitals)
    tables = [prepared(folder, silo_by=silo_by)[0] for folder in (plain, packed)]
    assert tables[0].equals(tables[1])
    assert tables[0]["silo"].n_unique() == 3


@pytest.mark.parametrize(
    ("orders", "medicines"),
    [
        ([order(1, 5, "Aspirin")], {"hicl-5"}),
        ([order(1, "5.0")], {"hicl-5"}),
        ([order(1, "", "  Aspirin   EC 81 mg ")], {"name-aspirin ec 81 mg"}),
        ([order(1, "", "ASPIRIN"), order(2, 5, "aspirin")], {"hicl-5"}),
        ([order(1, 0, "ASPIRIN"), order(2, 5, "aspirin")], {"hicl-5"}),
        ([order(1, "", "saline"), order(2, 5, "saline"), order(2, 6, "saline")], {"name-saline"}),
        ([order(1, "", "saline"), order(2, 5, "saline 0.9%")], {"name-saline"}),
    ],
    ids=[
        "code",
        "code as a fraction",
        "name",
        "name with a code elsewhere",
        "zero",
        "two codes",
        "other name",
    ],
)
def test_a_medicine_is_known_by_its_code_or_the_one_code_of_its_name_or_its_name(
    tmp_path: Path, orders: list[dict[str, Any]], medicines: set[str]
) -> None:
    write(tmp_path, patient=[stay(1, "a"), stay(2, "b", hospitalid=9)], medication=orders)
    table, _ = prepared(tmp_path)
    assert medicines_of(table) == medicines


def test_cancelled_orders_count_only_where_asked(tmp_path: Path) -> None:
    cancelled = order(1, 6, drugordercancelled="Yes")
    write(tmp_path, patient=[stay(1, "a")], medication=[order(1, 5), cancelled])
    (table, report), (kept, all_counted) = prepared(tmp_path), prepared(tmp_path, keep_cancelled=True)
    assert (medicines_of(table), medicines_of(kept)) == ({"hicl-5"}, {"hicl-5", "hicl-6"})
    assert dropped(report)["orders that were cancelled"] == (1, 0, 0)
    assert dropped(all_counted)["orders that were cancelled"] == (0, 0, 0)


FIRST_OF_TWO = {
    "the earlier year": ({"hospitaldischargeyear": 2015}, {"hospitaldischargeyear": 2014}),
    "the lower age of one year": ({"age": "71"}, {"age": "70"}),
    "below ninety before above": ({"age": "> 89"}, {"age": "89"}),
    "before the one that ended in death": (
        {"hospitaldischargestatus": "Expired"},
        {"hospitaldischargestatus": "Alive"},
    ),
    "the first visit of one hospital stay": ({"unitvisitnumber": 2}, {"unitvisitnumber": 1}),
    "the tenth visit after the second": ({"unitvisitnumber": 10}, {"unitvisitnumber": 2}),
    "the one with an outcome": ({"hospitaldischargestatus": ""}, {"hospitaldischargeyear": 2015}),
}


@pytest.mark.parametrize(("later", "first"), FIRST_OF_TWO.values(), ids=FIRST_OF_TWO)
def test_the_first_stay_of_a_patient_counts(
    tmp_path: Path, later: dict[str, Any], first: dict[str, Any]
) -> None:
    for name, (one, two) in {"a": (later, first), "b": (first, later)}.items():
        stays = [stay(1, "p", **one), stay(2, "p", **two)]
        orders = [order(1, 5 if one is first else 6), order(2, 5 if two is first else 6)]
        table, _ = prepared(write(tmp_path / name, patient=stays, medication=orders))
        assert (len(table), medicines_of(table)) == (1, {"hicl-5"})


def test_a_first_stay_without_orders_gives_way_to_the_first_with_some(tmp_path: Path) -> None:
    stays = [stay(1, "p"), stay(2, "p", unitvisitnumber=2), stay(3, "p", unitvisitnumber=3)]
    orders = [order(1, 4, drugordercancelled="Yes"), order(2, 5), order(3, 6)]
    table, _ = prepared(write(tmp_path, patient=stays, medication=orders))
    assert medicines_of(table) == {"hicl-5"}


def test_regions_come_from_the_hospital_table_and_hospitals_without_one_are_dropped(tmp_path: Path) -> None:
    write(
        tmp_path,
        patient=[stay(n, f"p{n}", hospitalid=n) for n in (1, 2, 3, 4)],
        medication=[order(n, 5) for n in (1, 2, 3, 4)],
        hospital=[{"hospitalid": n, "region": region} for n, region in ((1, "West"), (2, "South"), (3, ""))],
    )
    table, report = prepared(tmp_path, silo_by="region")
    assert table["silo"].to_list() == ["West", "South"]
    assert dropped(report)["stays in a hospital of unknown region"] == (2, 2, 2)


def crowd() -> dict[str, list[dict[str, Any]]]:
    """Hospitals 1 to 5 with as many patients; patient k of any has the medicines 1 to k."""
    who = [(hospital, number) for hospital in range(1, 6) for number in range(1, hospital + 1)]
    stays = [stay(10 * h + k, f"{h}-{k}", hospitalid=h) for h, k in who]
    return {"patient": stays, "medication": [order(10 * h + k, m) for h, k in who for m in range(1, k + 1)]}


@pytest.mark.parametrize(
    ("settings", "hospitals", "medicines"),
    [
        ({}, {1, 2, 3, 4, 5}, [1, 2, 3, 4, 5]),
        ({"min_patients": 3}, {3, 4, 5}, [1, 2, 3, 4, 5]),
        ({"silos": 2}, {4, 5}, [1, 2, 3, 4, 5]),
        ({"min_patients": 5, "silos": 3}, {5}, [1, 2, 3, 4, 5]),
        ({"medicines": 2}, {1, 2, 3, 4, 5}, [1, 2]),
        ({"min_uses": 6}, {1, 2, 3, 4, 5}, [1, 2, 3]),
        ({"silos": 1, "min_uses": 4}, {5}, [1, 2]),
    ],
)
def test_silos_and_medicines_are_kept_by_size(
    tmp_path: Path, settings: dict[str, int], hospitals: set[int], medicines: list[int]
) -> None:
    table, report = prepared(write(tmp_path, **crowd()), **settings)
    assert set(table["silo"]) == {f"hospital-{number}" for number in hospitals}
    assert table.columns[2:] == [f"hicl-{number}" for number in medicines]
    assert list(report.silos) == [f"hospital-{number}" for number in sorted(hospitals, reverse=True)]
    assert {silo["patients"] for silo in report.silos.values()} == hospitals
    assert report.medicines["kept"] == len(medicines)


def test_the_report_adds_up_to_what_is_kept_and_is_written_beside_the_table(tmp_path: Path) -> None:
    strange = [order(999, 5), order(11, "", ""), order(55, 2, drugordercancelled="Yes")]
    tables = crowd()
    tables["patient"] += [stay(77, "5-1", hospitalid=5, unitvisitnumber=2), stay(78, "x", hospitalid=5)]
    tables["patient"][0]["hospitaldischargestatus"] = ""
    tables["medication"] += [*strange, order(77, 9)]
    table, report = prepared(write(tmp_path, **tables), min_patients=3, silos=2)
    found, *between, kept = report.steps
    for quantity in ("orders", "stays", "patients"):
        lost = sum(getattr(step, quantity) for step in between)
        assert getattr(found, quantity) - lost == getattr(kept, quantity), quantity
    assert (kept.patients, kept.stays) == (len(table), len(table))
    assert dropped(report) == {
        "orders that were cancelled": (1, 0, 0),
        "orders with neither code nor name": (1, 0, 0),
        "orders of a stay that patient does not list": (1, 0, 0),
        "stays without a hospital outcome": (1, 1, 1),
        "stays without an order left": (0, 1, 1),
        "later stays of the same patient": (1, 1, 0),
        "hospitals with fewer than 3 patients": (3, 2, 2),
        "hospitals beyond the 2 largest": (6, 3, 3),
    }
    written = json.loads(report_file(tmp_path / "out" / "eicu.parquet").read_text())
    assert written == json.loads(report.json())
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_the_report_names_each_column_by_its_commonest_name(tmp_path: Path) -> None:
    names = ["Coumadin", "WARFARIN", "warfarin", "", "Aspirin"]
    orders = [order(1, 6 if name == "Aspirin" else 5, name) for name in names]
    _, report = prepared(write(tmp_path, patient=[stay(1, "a")], medication=[*orders, order(1, 8)]))
    assert report.columns == {"hicl-5": "warfarin", "hicl-6": "aspirin", "hicl-8": ""}


def test_columns_may_be_in_capitals_and_in_any_order(tmp_path: Path) -> None:
    named = {"uniquepid": "uniquePID", "drughiclseqno": "drugHiclSeqno", "hospitalid": "hospitalID"}
    tables = {
        name: [{named.get(key, key): value for key, value in reversed(row.items())} for row in rows]
        for name, rows in crowd().items()
    }
    plain, _ = prepared(write(tmp_path / "plain", **crowd()))
    other, _ = prepared(write(tmp_path / "other", **tables))
    assert plain.equals(other)


SMALL = {"patient": [stay(1, "a")], "medication": [order(1, 5)]}


def changed(table: str, **columns: Any) -> dict[str, list[dict[str, Any]]]:
    return {
        **SMALL,
        table: [{k: v for k, v in {**row, **columns}.items() if v is not None} for row in SMALL[table]],
    }


@pytest.mark.parametrize(
    ("tables", "settings", "sentence"),
    [
        ({"patient": SMALL["patient"]}, {}, "holds no medication.csv or medication.csv.gz; put"),
        ({"medication": SMALL["medication"]}, {}, "holds no patient.csv or patient.csv.gz; put"),
        (SMALL, {"silo_by": "region"}, "holds no hospital.csv or hospital.csv.gz; put"),
        (changed("patient", uniquepid=None), {}, r"patient.csv lacks the columns uniquepid; it must be"),
        (changed("medication", drugname=None), {}, "medication.csv lacks the columns drugname; it must be"),
        (changed("patient", hospitaldischargestatus=""), {}, "patient table in .* has no outcomes: "),
        (
            changed("patient", hospitaldischargestatus="Transferred"),
            {},
            "patient table in .* has no outcomes: ",
        ),
        (changed("patient", hospitalid="north"), {}, "patient.csv has no hospitalid in row 1; complete"),
        (changed("patient", uniquepid=""), {}, "patient.csv has no uniquepid in row 1; complete"),
        ({**SMALL, "patient": SMALL["patient"] * 2}, {}, "patient.csv lists the stay 1 more than once"),
        (
            changed("medication", patientunitstayid=4),
            {},
            "no patient is left: none has an outcome, an order and",
        ),
        (SMALL, {"min_patients": 2}, "no hospital has 2 patients or more .the largest has 1.; lower"),
        (
            SMALL,
            {"min_uses": 2},
            "no medicine was ordered for 2 patients or more .the most frequent for 1.; low",
        ),
    ],
)
def test_tables_that_cannot_be_used_are_refused_and_nothing_is_written(
    tmp_path: Path, tables: dict[str, Any], settings: dict[str, Any], sentence: str
) -> None:
    write(tmp_path, **tables)
    with pytest.raises(DataError, match=sentence) as refused:
        prepared(tmp_path, **settings)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.rglob("*.parquet")) + list(tmp_path.rglob("*.json"))
    assert not list((tmp_path / "out").glob("*")) + list((tmp_path / "out").glob(".*"))


def test_a_medication_table_of_only_its_header_is_refused(tmp_path: Path) -> None:
    write(tmp_path, **SMALL)
    header = (tmp_path / "medication.csv").read_text().splitlines()[0]
    (tmp_path / "medication.csv").write_text(header + "\n")
    with pytest.raises(DataError, match="the medication table holds no order"):
        prepared(tmp_path)


def many_orders() -> bytes:
    rows = [order(1, number % 900 + 1, f"medicine {number * 7919}") for number in range(20_000)]
    return gzip.compress(pl.DataFrame(rows, infer_schema_length=None).write_csv().encode())


@pytest.mark.parametrize("damage", ["cut short", "one byte changed", "empty"])
def test_a_damaged_archive_is_refused_and_what_was_there_before_stays(tmp_path: Path, damage: str) -> None:
    write(tmp_path, **SMALL)
    before, _ = prepared(tmp_path)
    (tmp_path / "medication.csv").unlink()
    whole = bytearray(many_orders())
    half = len(whole) // 2
    wrong = {
        "cut short": whole[:half],
        "one byte changed": whole[:half] + bytes([whole[half] ^ 255]) + whole[half + 1 :],
    }
    (tmp_path / "medication.csv.gz").write_bytes(wrong.get(damage, b""))
    with pytest.raises(
        DataError, match=r"medication.csv.gz cannot be read: .*; if it is damaged, fetch it"
    ) as refused:
        prepared(tmp_path)
    assert "\n" not in str(refused.value)
    out = tmp_path / "out"
    assert pl.read_parquet(out / "eicu.parquet").equals(before)
    assert sorted(path.name for path in out.iterdir()) == ["eicu.parquet", "eicu.report.json"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"silo_by": "regoin"}, "silo_by='regoin' is unknown; did you mean 'region'"),
        ({"silos": 0}, "silos=0 is too small; give 1 or more"),
        ({"min_uses": -1}, "min_uses=-1 is too small"),
    ],
)
def test_settings_without_a_meaning_are_refused(
    tmp_path: Path, settings: dict[str, Any], sentence: str
) -> None:
    write(tmp_path, **SMALL)
    with pytest.raises(ConfigError, match=sentence):
        prepared(tmp_path, **settings)


def test_a_table_of_another_kind_than_parquet_is_refused(tmp_path: Path) -> None:
    write(tmp_path, **SMALL)
    with pytest.raises(
        ConfigError, match=re.escape("eicu.csv cannot be the name of the table; give a file that ends")
    ):
        prepare(tmp_path, tmp_path / "eicu.csv")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write(tmp_path, **SMALL)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"eicu.parquet cannot be written: "):
        prepare(tmp_path, tmp_path / "file" / "eicu.parquet", min_patients=1)


def test_the_open_demo_gives_the_table_that_plain_loops_over_its_rows_give(tmp_path: Path) -> None:
    demo = real_data("eicu-demo") / "eicu-demo"
    report = prepare(demo, tmp_path / "eicu.parquet", silo_by="region", min_uses=5)
    table = pl.read_parquet(tmp_path / "eicu.parquet")
    names = np.array(table.columns[2:])
    found = [(row[0], row[1], frozenset(names[np.array(row[2:]) == 1].tolist())) for row in table.rows()]
    assert Counter(found) == Counter(slow_table(demo, min_uses=5))
    assert report.steps[0].orders == 75_604
    assert list(report.silos) == ["Midwest", "South", "West", "Northeast"]
