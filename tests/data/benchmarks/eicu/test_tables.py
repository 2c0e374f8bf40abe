"""eICU's raw tables: how cells are read, and that the largest table is never held in memory."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest

from fedilc.data.benchmarks.eicu.tables import gather_orders, read_regions, read_stays, scan_orders
from fedilc.errors import DataError

PATIENT = (
    "patientunitstayid,UniquePID, hospitalid,hospitaldischargestatus,hospitaldischargeyear,age,"
    "patienthealthsystemstayid,unitvisitnumber,more\n"
)
MEDICATION = "drugordercancelled,patientunitstayid,drughiclseqno,drugname\n"


def test_stays_have_outcomes_and_numbers_however_they_are_written(tmp_path: Path) -> None:
    rows = "1,a,7,Expired,2014,> 89,5,1,x\n2.0, b ,7,ALIVE,2015,60,6,2,x\n3,c,8,,,,,,\n"
    (tmp_path / "patient.csv").write_text(PATIENT + rows)
    stays = read_stays(tmp_path)
    assert stays.select("stay", "patient", "hospital", "died").rows() == [
        *((1, "a", 7, 1), (2, "b", 7, 0), (3, "c", 8, None))
    ]
    assert stays["age"].to_list() == [90, 60, None]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("1,,7,Alive,2014,60,5,1,x\n", "has no uniquepid in row 1; complete or remove such rows"),
        ("1,a,7,Alive,2014,60,5,1,x\n1,b,7,Alive,2014,60,5,1,x\n", "lists the stay 1 more than once"),
    ],
)
def test_stays_that_cannot_be_told_apart_are_refused(tmp_path: Path, rows: str, sentence: str) -> None:
    (tmp_path / "patient.csv").write_text(PATIENT + rows)
    with pytest.raises(DataError, match=sentence):
        read_stays(tmp_path)


def test_hospitals_without_a_region_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "hospital.csv").write_text("hospitalid,region\n7,West\n8,\n7,South\n9, South \n")
    assert sorted(read_regions(tmp_path).rows()) == [(7, "West"), (9, "South")]


def test_orders_have_plain_names_and_0_for_no_code(tmp_path: Path) -> None:
    rows = "No,1,2812.0,  Warfarin   SODIUM \nYes,2,-1,\n,3,,Honey\n"
    (tmp_path / "medication.csv").write_text(MEDICATION + rows)
    assert gather_orders(tmp_path, tmp_path).collect().rows() == [
        *((1, 2812, "warfarin sodium", False), (2, 0, "", True), (3, 0, "honey", False))
    ]


def in_memory(query: pl.LazyFrame) -> bool:
    """Whether polars marks a step of a query as one that holds more than a batch of rows."""
    plan = query.show_graph(engine="streaming", plan_stage="physical", raw_output=True)
    return "style=filled" in str(plan)


@pytest.mark.parametrize("compressed", [False, True])
def test_the_medication_table_streams_and_is_never_held_in_memory(tmp_path: Path, compressed: bool) -> None:
    text = f"{MEDICATION}No,1,5,honey\n".encode()
    suffix, content = (".gz", gzip.compress(text)) if compressed else ("", text)
    (tmp_path / f"medication.csv{suffix}").write_bytes(content)
    _, orders = scan_orders(tmp_path)
    assert not in_memory(orders)
    assert in_memory(orders.sort("code")), "a query that must hold its rows is told apart"


def test_a_folder_without_the_table_and_a_table_of_another_kind_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no medication\.csv or medication\.csv\.gz"):
        scan_orders(tmp_path)
    with pytest.raises(DataError, match="gone is not a folder; give the one that holds eICU's tables"):
        scan_orders(tmp_path / "gone")
    (tmp_path / "medication.csv").write_text("patientunitstayid\n1\n")
    with pytest.raises(DataError, match="lacks the columns drughiclseqno, drugname, drugordercancelled"):
        scan_orders(tmp_path)
