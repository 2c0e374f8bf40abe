"""Cells of tables: means with deviations, and results of tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedilc.evaluation.significance import PairedTest, spread
from fedilc.report.table_formats import Cell

NOTHING = Cell("-")


def mean_cell(values: Sequence[float], scale: float = 1.0, runs: int | None = None) -> Cell:
    """Return mean and deviation; one value has no deviation.

    >>> mean_cell([0.5, 0.6]).text, mean_cell([0.5]).text, mean_cell([0.5], runs=2).text
    ('0.550±0.071', '0.500', '0.500 (1 of 2 seeds)')
    """
    if not values:
        return NOTHING
    mean, deviation = (scale * number for number in spread(values))
    missing = f" ({len(values)} of {runs} seeds)" if runs and runs > len(values) else ""
    return spread_cell(mean, deviation if len(values) > 1 else None, missing)


def spread_cell(mean: float, deviation: float | None, missing: str = "") -> Cell:
    """Return a mean, with its deviation if there is one."""
    if deviation is None:
        return Cell(f"{mean:.3f}{missing}", parts=(f"{mean:.6g}", ""), number=round(mean, 3))
    parts = (f"{mean:.6g}", f"{deviation:.6g}")
    return Cell(f"{mean:.3f}±{deviation:.3f}{missing}", parts=parts, number=round(mean, 3))


def with_best(cells: Mapping[str, Cell], lower: bool) -> dict[str, Cell]:
    """Return the cells with the best mean, as it is printed, in bold, if at least two have a mean.

    >>> cells = with_best({"a": mean_cell([0.5001]), "b": mean_cell([0.5002]), "c": NOTHING}, True)
    >>> [cell.bold for cell in cells.values()]
    [True, True, False]
    """
    means = {name: cell.number for name, cell in cells.items() if cell.number is not None}
    if len(means) < 2:
        return dict(cells)
    best = (min if lower else max)(means.values())
    return {name: replace(cell, bold=means.get(name) == best) for name, cell in cells.items()}


def verdict_cells(test: PairedTest | None) -> tuple[Cell, Cell]:
    """Return the verdict of a test, and its two p-values."""
    if test is None:
        return NOTHING, NOTHING
    verdict = Cell(test.verdict, parts=(test.verdict, f"{test.difference:.6g}"))
    if test.t_p is None:
        return verdict, NOTHING
    digits = (f"{test.t_p:.4g}", "" if test.flip_p is None else f"{test.flip_p:.4g}")
    return verdict, Cell(f"{p_text(test.t_p)}/{p_text(test.flip_p)}", parts=digits)


def p_text(value: float | None) -> str:
    """Return a p-value as it is usually printed, without its first zero.

    >>> p_text(0.0312), p_text(1e-5), p_text(1.0)
    ('.031', '<.001', '1.000')
    """
    if value is None:
        return "-"
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")
