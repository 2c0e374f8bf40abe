"""A summary that no table has is refused, and one that the other silos contradict names its silo."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from fedilc.data.tables.silo_summary import SiloSummary, summarise
from fedilc.data.tables.summary_checks import check_summary, unconfirmed_silos
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import DataError

ROWS = 200
SETTINGS = TableSettings(label="died")


def honest(name: str, seed: int = 0, labels: tuple[str, ...] = ("no", "yes")) -> SiloSummary:
    random = np.random.default_rng(seed)
    frame = pl.DataFrame({"age": random.normal(60, 10, ROWS), "sex": random.choice(["f", "m"], ROWS)})
    label = pl.Series("died", [labels[place % len(labels)] for place in range(ROWS)])
    return summarise(name, frame, label, SETTINGS, sent=True)


def changed(summary: SiloSummary, column: str | None = None, **update: Any) -> SiloSummary:
    """The summary with other values, without validation, as an attacker may send it."""
    if column is None:
        return summary.model_copy(update=update)
    columns = [one.model_copy(update=update) if one.name == column else one for one in summary.columns]
    return summary.model_copy(update={"columns": tuple(columns)})


@pytest.mark.parametrize(
    ("column", "update", "reason"),
    [
        ("age", {"count": ROWS + 1}, "has 201 values in 200 rows"),
        ("age", {"numbers": ROWS + 1}, "more numbers and texts than values"),
        ("age", {"numbers": 3, "total": "9", "squares": "27"}, "a sum of fewer than 10 values"),
        ("age", {"total": "9" * 890}, "too large for its number of values"),
        ("age", {"squares": "9" * 890}, "too large for its number of values"),
        ("age", {"squares": "-1"}, "too large for its number of values"),
        ("age", {"total": str(10**30)}, "sum of squares does not allow"),
        ("age", {"numbers": 0}, "a sum of no values"),
        ("age", {"zero": True}, "is 0 everywhere"),
        ("sex", {"levels": tuple(f"x{place}" for place in range(900))}, "900 categories"),
        ("age", {"histogram": ((64.0, 200), (32.0, 0))}, "numbers are not ascending"),
        ("age", {"histogram": ((64.125, 200),)}, "too many digits"),
        ("age", {"histogram": ((32.0, 3), (64.0, 197))}, "counts fewer than 10 values in a group"),
        ("age", {"histogram": ((32.0, 100), (64.0, 150))}, "of more or fewer numbers than it has"),
        ("sex", {"levels": ("m", "m")}, "twice"),
        (None, {"labels": {f"y{place}": 50 for place in range(900)}}, "more values than it has rows"),
        (None, {"labels": {"no": 199, "yes": 1}}, "counted in fewer than 10 rows"),
    ],
)
def test_what_no_table_has_is_refused(column: str | None, update: dict[str, Any], reason: str) -> None:
    check_summary(honest("a"), SETTINGS)
    with pytest.raises(DataError, match=f"summary of silo 'a' is refused: .*{reason}"):
        check_summary(changed(honest("a"), column, **update), SETTINGS)


def test_what_is_too_much_to_read_is_refused_at_once() -> None:
    sent = honest("a").model_dump()
    many = [sent["columns"][0] | {"name": f"x{place}"} for place in range(45_000)]
    for wrong in ({"rows": 1e30}, {"columns": many}, {"labels": {f"y{n}": 50 for n in range(900)}}):
        with pytest.raises(ValidationError):
            SiloSummary.model_validate(sent | wrong)


def others() -> dict[str, SiloSummary]:
    return {name: honest(name, seed) for seed, name in enumerate("abc")}


def test_silos_that_agree_are_believed() -> None:
    assert unconfirmed_silos(others(), SETTINGS) == {}


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (
            changed(honest("x"), labels={f"y{n}": 20 for n in range(10)}),
            "10 values that most silos do not have",
        ),
        (changed(honest("x"), labels={}), "label is a number, but the labels of most silos are classes"),
        (changed(honest("x"), rows=10**9), "over 10,000 times as many as the others"),
        (
            changed(honest("x"), "age", total=str(ROWS * 10**30), squares=str(ROWS * 10**60)),
            "values of its column 'age' are over 1,000,000 times",
        ),
    ],
)
def test_a_silo_that_all_others_contradict_is_named(attack: SiloSummary, reason: str) -> None:
    found = unconfirmed_silos({**others(), "x": attack}, SETTINGS)
    assert list(found) == ["x"]
    assert reason in found["x"]


def test_a_class_of_one_silo_alone_is_one_if_the_settings_declare_it() -> None:
    found = {**others(), "x": honest("x", labels=("no", "yes", "unknown"))}
    assert list(unconfirmed_silos(found, SETTINGS)) == ["x"]
    declared = SETTINGS.model_copy(update={"categories": {"died": ["no", "yes", "unknown"]}})
    assert unconfirmed_silos(found, declared) == {}


def test_silos_with_too_few_of_a_class_do_not_deny_it() -> None:
    few = {name: changed(honest(name), labels={"no": 195}, rare_labels=True) for name in "bcd"}
    assert unconfirmed_silos({"a": honest("a"), **few}, SETTINGS) == {}
