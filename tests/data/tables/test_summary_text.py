"""The owner reads every fact of a summary in plain lines, which hold no control characters."""

from __future__ import annotations

from fedilc.data.tables.silo_summary import ColumnSummary, SiloSummary
from fedilc.data.tables.summary_checks import summary_lines


def test_every_fact_has_its_place() -> None:
    columns = (
        ColumnSummary(
            name="age", place=0, kind="text", count=60, numbers=50, strays=9, total="7/2", squares="9"
        ),
        ColumnSummary(
            name="lab", place=1, kind="number", count=60, numbers=60, zero=True, code=-9.0, auroc=0.97
        ),
        ColumnSummary(name="ward\x1b[2J", place=2, kind="text", count=55, levels=("a", "b"), other=True),
        ColumnSummary(name="id", place=3, kind="number", count=60, identifier=True),
    )
    summary = SiloSummary(
        name="a",
        rows=60,
        unlabelled=3,
        labels={"no": 60, "yes": 0},
        rare_labels=True,
        unit=10,
        columns=columns,
    )
    assert summary_lines(summary, "died", 10) == [
        "rows: 60; rows without a label: 3; all counts are rounded to multiples of 10",
        "label 'died': 'no' in 60 rows, 'yes', values of fewer than 10 rows, not named",
        "column 'age': text, 60 values, 9 of them text, 50 numbers, sum 3.5, sum of squares 9",
        "column 'lab': number, 60 values, 60 numbers, sum 0, sum of squares 0, all 0, -9 may mean missing, "
        "AUROC 0.97",
        r"column 'ward\x1b[2J': text, 55 values, categories 'a', 'b', other (fewer than 10 rows each)",
        "column 'id': number, 60 values, an identifier: no value, no sum",
    ]


def test_a_label_that_is_a_number_has_no_values() -> None:
    summary = SiloSummary(name="a", rows=60, labels={}, columns=())
    assert summary_lines(summary, "weight", 10)[1] == "label 'weight': a number; none of its values"
