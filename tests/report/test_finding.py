"""The sentence that ends `fedilc run` follows its numbers, whichever way they fall."""

from __future__ import annotations

from typing import Any

import pytest

from fedilc.report.finding import finding
from fedilc.report.run_tables import last_round_table


def ended(silos: float | None, site: float | None) -> list[dict[str, Any]]:
    return [{"round": 1}, {"round": 2, "validation_accuracy": silos, "test_accuracy": site}]


@pytest.mark.parametrize(
    ("reference", "method", "told"),
    [
        (
            (0.84, 0.33),
            (0.77, 0.64),
            "fedsgd learnt more of what helps at the silos and misleads at the new site.",
        ),
        ((0.84, 0.33), (0.90, 0.64), "mine is the better one at both."),
        ((0.84, 0.50), (0.77, 0.53), "neither is clearly better at the new site."),
        ((0.84, 0.64), (0.90, 0.33), "fedsgd is the better one at the new site."),
    ],
)
def test_the_sentence_says_what_the_numbers_do(
    reference: tuple[float, float], method: tuple[float, float], told: str
) -> None:
    found = finding({"fedsgd": ended(*reference), "mine": ended(*method)})
    numbers = [round(100 * value) for value in (*reference, *method)]
    assert found == (
        "In this run, fedsgd is right in {} % of the cases at the silos and in {} % at the new site, and "
        "mine in {} % and {} %: ".format(*numbers)
        + told
    )


def test_without_accuracies_there_is_no_sentence() -> None:
    assert finding({"fedsgd": ended(0.8, None), "mine": ended(0.7, 0.6)}) is None
    assert finding({"fedsgd": [{"round": 1}], "mine": [{"round": 1}]}) is None


def test_the_table_has_the_last_rounds_accuracies() -> None:
    table = last_round_table("demo", {"fedsgd": ended(0.84, 0.33), "mine": ended(0.77, 0.64)})
    rows = [[cell.text for cell in row] for row in table.rows]
    assert rows == [["fedsgd", "2", "0.840", "-", "0.330"], ["mine", "2", "0.770", "-", "0.640"]]
