"""A silo's summary as its owner reads it before it is sent: a line per column, nothing left out."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from fedilc.data.tables.silo_summary import ColumnSummary, SiloSummary
from fedilc.errors import printable


def summary_lines(summary: SiloSummary, label: str, min_category: int) -> list[str]:
    """Return the lines that show a summary; `label` is the run's label as its settings name it."""
    exact = "exact" if summary.unit == 1 else f"rounded to multiples of {summary.unit}"
    lines = [f"rows: {summary.rows}; rows without a label: {summary.unlabelled}; all counts are {exact}"]
    values = [f"{name!r} in {rows} rows" if rows else f"{name!r}" for name, rows in summary.labels.items()]
    values += [f"values of fewer than {min_category} rows, not named"] if summary.rare_labels else []
    lines.append(f"label {label!r}: {', '.join(values) or 'a number; none of its values'}")
    lines += [
        f"column {column.name!r}: {', '.join(_facts(column, min_category))}" for column in summary.columns
    ]
    return [printable(line) for line in lines]


def _facts(column: ColumnSummary, min_category: int) -> Iterator[str]:
    yield f"{column.kind}, {column.count} values"
    if column.strays:
        yield f"{column.strays} of them text"
    if column.identifier:
        yield "an identifier: no value, no sum"
    if column.numbers:
        yield f"{column.numbers} numbers, sum {_shown(column.total)}, sum of squares {_shown(column.squares)}"
    if column.zero:
        yield "all 0"
    if column.code is not None:
        yield f"{column.code:g} may mean missing"
    if column.levels is not None:
        named = [repr(level) for level in column.levels]
        named += [f"other (fewer than {min_category} rows each)"] if column.other else []
        yield f"categories {', '.join(named) or 'none'}"
    if column.auroc is not None:
        yield f"AUROC {column.auroc:g}"


def _shown(exact: str) -> str:
    return f"{float(Fraction(exact)):.12g}"
