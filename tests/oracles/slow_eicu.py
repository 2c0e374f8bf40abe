"""What preparing the eICU demo should give, by plain loops over its rows."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import polars as pl


def text(value: str | None) -> str:
    return " ".join((value or "").lower().split())


Rows = list[dict[str, str | None]]


def slow_medicines(orders: Rows) -> dict[str | None, set[str]]:
    """The medicines of each stay that has any."""
    counted = [row for row in orders if row["drugordercancelled"] != "Yes"]
    codes: dict[str, set[str]] = {}
    for row in counted:
        if row["drughiclseqno"]:
            codes.setdefault(text(row["drugname"]), set()).add(row["drughiclseqno"])
    ordered: dict[str | None, set[str]] = {}
    for row in counted:
        name = text(row["drugname"])
        lent = codes.get(name, set()) if name else set()
        code = row["drughiclseqno"] or (min(lent) if len(lent) == 1 else None)
        if code or name:
            ordered.setdefault(row["patientunitstayid"], set()).add(
                f"hicl-{code}" if code else f"name-{name}"
            )
    return ordered


def slow_order(stay: dict[str, str | None]) -> tuple[int, ...]:
    """What is smaller for an earlier stay of a patient."""
    age = stay["age"] or ""
    years = int(re.findall(r"\d+", age)[0]) + (">" in age) if re.search(r"\d", age) else 999
    kept = ("hospitaldischargeyear", "patienthealthsystemstayid", "unitvisitnumber", "patientunitstayid")
    year, *numbers = (int(stay[name] or 0) for name in kept)
    return (year, years, int(stay["hospitaldischargestatus"] == "Expired"), *numbers)


def slow_table(folder: Path, min_uses: int) -> list[tuple[str | None, int, frozenset[str]]]:
    """Region, outcome and medicines of each patient of the demo, with regions as silos."""
    tables: dict[str, Rows] = {
        name: pl.read_csv(folder / f"{name}.csv.gz", infer_schema=False).to_dicts()
        for name in ("patient", "medication", "hospital")
    }
    regions = {row["hospitalid"]: row["region"] for row in tables["hospital"]}
    ordered = slow_medicines(tables["medication"])
    first: dict[str | None, dict[str, str | None]] = {}
    for row in sorted(tables["patient"], key=slow_order):
        outcome = row["hospitaldischargestatus"] in ("Alive", "Expired")
        if outcome and row["patientunitstayid"] in ordered and regions[row["hospitalid"]]:
            first.setdefault(row["uniquepid"], row)
    uses = Counter(medicine for row in first.values() for medicine in ordered[row["patientunitstayid"]])
    kept = {medicine for medicine, number in uses.items() if number >= min_uses}
    return [
        (
            regions[row["hospitalid"]],
            int(row["hospitaldischargestatus"] == "Expired"),
            frozenset(ordered[row["patientunitstayid"]] & kept),
        )
        for row in first.values()
    ]
