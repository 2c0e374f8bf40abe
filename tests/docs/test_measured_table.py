"""The README's measured figures are those of the committed measurement."""

from __future__ import annotations

import json

from benchmarks.measured_table import BEGIN, GROUPS, RESULTS, ROOT, filled, table

FOUND = json.loads(RESULTS.read_text())


def test_the_readme_has_the_figures_of_the_measurement() -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.count(BEGIN) == 1
    assert filled(readme, FOUND) == readme


def test_every_group_that_the_readme_names_was_measured_in_full() -> None:
    assert not FOUND["quick"]
    assert GROUPS.keys() <= {row["group"] for row in FOUND["rows"]}


def test_another_figure_is_another_table() -> None:
    row = FOUND["rows"][0]
    other = {"rows": [{**row, "ratio": row["ratio"] + 1}]}
    assert table(other) != table({"rows": [row]})
