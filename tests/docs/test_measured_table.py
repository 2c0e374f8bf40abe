"""The measured figures of docs/explanation/speed.md are those of the committed measurement."""

from __future__ import annotations

import json

from benchmarks.measured_table import BEGIN, GROUPS, PAGE, RESULTS, filled, table

FOUND = json.loads(RESULTS.read_text())


def test_the_page_has_the_figures_of_the_measurement() -> None:
    page = PAGE.read_text()
    assert page.count(BEGIN) == 1
    assert filled(page, FOUND) == page


def test_every_group_that_the_page_names_was_measured_in_full() -> None:
    assert not FOUND["quick"]
    assert GROUPS.keys() <= {row["group"] for row in FOUND["rows"]}


def test_another_figure_is_another_table() -> None:
    row = FOUND["rows"][0]
    other = {"rows": [{**row, "ratio": row["ratio"] + 1}]}
    assert table(other) != table({"rows": [row]})
