"""Show a silo's summary to its owner before it is sent, and check it before a run believes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fedilc.data.tables.label_rule import LabelRule, folded_label, label_names
from fedilc.data.tables.silo_summary import ColumnSummary, SiloSummary, truncated
from fedilc.errors import DataError, listed, printable

if TYPE_CHECKING:
    from fedilc.data.tables.table_settings import TableSettings

MOST_TIMES_ROWS = 10_000
MOST_TIMES_VALUES = 1_000_000
_LARGEST = Fraction(float(np.finfo(np.float32).max))
_EXACT_TO = 1 + Fraction(1, 2**40)  # a tolerance: squares below 1e-290 are not exact
_TINY = Fraction(1, 2**900)


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
    if column.histogram is not None:
        groups = [f"{rows} near {value:g}" for value, rows in column.histogram]
        yield f"of these numbers {listed(groups, 100)}"
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


def check_summary(summary: SiloSummary, settings: TableSettings) -> None:
    """Raise if no table has this summary: counts, sums or categories that contradict each other."""
    wrong = next(_contradictions(summary, settings), None)
    if wrong is not None:
        raise DataError(f"the summary of silo {summary.name!r} is refused: {wrong}")


def unconfirmed_silos(summaries: Mapping[str, SiloSummary], settings: TableSettings) -> dict[str, str]:
    """Return the silos whose summaries the others contradict, each with the reason.

    A value of the label must be named by the settings, or by more silos than those that name all their values
    and not this one. With three silos or more, rows and numbers are compared with those of the others.
    """
    found = _unlike_labels(summaries, settings)
    for name, summary in summaries.items():
        others = [other for silo, other in summaries.items() if silo != name]
        reason = _unlike_numbers(summary, others) if len(others) > 1 else None
        if reason is not None:
            found.setdefault(name, reason)
    return found


def _contradictions(summary: SiloSummary, settings: TableSettings) -> Iterator[str]:
    floor, unit, rows = settings.min_category, summary.unit, summary.rows
    named = [column.name for column in summary.columns]
    if len(set(named)) < len(named):
        yield "it has two columns of one name"
    counted = [count for count in summary.labels.values() if count]
    if sum(counted) > rows + unit * len(counted):
        yield f"its label has more values than it has rows ({rows})"
    if any(count < floor - unit for count in counted):
        yield f"a value of its label is counted in fewer than {floor} rows"
    for column in summary.columns:
        wrong = _wrong_counts(column, rows, floor, unit) or _wrong_sums(column)
        wrong = wrong or _wrong_histogram(column, floor, unit)
        if wrong is not None:
            yield f"column {column.name!r} {wrong}"


def _wrong_counts(column: ColumnSummary, rows: int, floor: int, unit: int) -> str | None:
    if column.count > rows:
        return f"has {column.count} values in {rows} rows"
    if column.numbers + column.strays > column.count:
        return "has more numbers and texts than values"
    if 0 < column.numbers < floor - unit:
        return f"has a sum of fewer than {floor} values"
    if column.levels and len(column.levels) * (floor - unit) > column.count + unit:
        return f"has {len(column.levels)} categories, each of at least {floor} rows, in {column.count} values"
    if column.levels and len(set(column.levels)) < len(column.levels):
        return "names a category twice"
    return None


def _wrong_histogram(column: ColumnSummary, floor: int, unit: int) -> str | None:
    if column.histogram is None:
        return None
    values, counts = [value for value, _ in column.histogram], [rows for _, rows in column.histogram]
    if values != sorted(set(values)) or values != truncated(np.array(values)).tolist():
        return "has a histogram whose numbers are not ascending, or have too many digits"
    if any(rows < floor - unit for rows in counts):
        return f"counts fewer than {floor} values in a group of its histogram"
    if abs(sum(counts) - column.numbers) > (0 if unit == 1 else unit * (len(counts) + 1)):
        return "has a histogram of more or fewer numbers than it has"
    return None


def _wrong_sums(column: ColumnSummary) -> str | None:
    count, total, squares = column.sums
    if not count:
        return "has a sum of no values" if total or squares else None
    if abs(total) > count * _LARGEST or not 0 <= squares <= count * _LARGEST**2 * _EXACT_TO:
        return "has sums that are too large for its number of values; rescale the column"
    if total**2 > count * squares * _EXACT_TO + _TINY:  # Cauchy-Schwarz: (sum x)^2 <= n sum x^2
        return "has a sum that its sum of squares does not allow"
    return "is 0 everywhere but has another sum" if column.zero and squares else None


def _unlike_numbers(summary: SiloSummary, others: list[SiloSummary]) -> str | None:
    usual = median(other.rows for other in others)
    if summary.rows > MOST_TIMES_ROWS * usual:
        return f"it claims {summary.rows} rows, over {MOST_TIMES_ROWS:,} times as many as the others"
    known: dict[str, list[Fraction]] = {}
    for other in others:
        for column in other.columns:
            if column.numbers:
                known.setdefault(column.name, []).append(_mean_square(column))
    for column in summary.columns:
        sizes = known.get(column.name, [])
        if (
            column.numbers
            and len(sizes) > 1
            and _mean_square(column) > MOST_TIMES_VALUES**2 * median(sizes) > 0
        ):
            times = f"{MOST_TIMES_VALUES:,} times"
            return f"the values of its column {column.name!r} are over {times} those of the others"
    return None


def _mean_square(column: ColumnSummary) -> Fraction:
    return Fraction(column.squares) / column.numbers


def _unlike_labels(summaries: Mapping[str, SiloSummary], settings: TableSettings) -> dict[str, str]:
    numeric = [silo for silo, one in summaries.items() if not one.labels and not one.rare_labels]
    if 2 * len(numeric) > len(summaries):
        return {}
    rule = LabelRule.parse(settings.label)
    reason = (
        "it claims that its label is a number, but the labels of most silos are classes; if it is a number, "
        "set data.loss"
    )
    found = dict.fromkeys(numeric, reason)
    given = [*rule.classes, *settings.categories.get(rule.column, ()), settings.positive or ""]
    declared = {folded_label(name) for name in label_names(pl.Series(given, dtype=pl.String))}
    names = {silo: {folded_label(name) for name in one.labels} for silo, one in summaries.items()}
    complete = [names[silo] for silo, one in summaries.items() if silo not in found and not one.rare_labels]
    for silo, own in names.items():
        extra = [
            name
            for name in sorted(own - declared)
            if sum(name in other for other in names.values()) <= sum(name not in other for other in complete)
        ]
        if extra:
            values = listed([repr(name) for name in extra])
            found[silo] = (
                f"its label has {len(extra)} values that most silos do not have ({values}); if they are "
                f"classes, declare all classes in data.categories.{rule.column}"
            )
    return found
