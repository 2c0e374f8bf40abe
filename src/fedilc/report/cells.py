"""Cells of tables: means with deviations, the paper's numbers, differences and results of tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedilc.evaluation.campaign import Campaign, spread
from fedilc.evaluation.significance import PairedTest
from fedilc.report.campaign.paper import PaperNumber
from fedilc.report.table_formats import Cell

NOTHING = Cell("-")
FAR = 2.0


def mean_cell(values: Sequence[float], scale: float = 1.0, runs: int | None = None) -> Cell:
    """Return mean and deviation as the paper prints them; one value has no deviation.

    >>> mean_cell([0.5, 0.6]).text, mean_cell([0.5]).text, mean_cell([0.5], runs=2).text
    ('0.550±0.071', '0.500', '0.500 (1 of 2 seeds)')
    """
    if not values:
        return NOTHING
    mean, deviation = (scale * number for number in spread(values))
    missing = f" ({len(values)} of {runs} seeds)" if runs and runs > len(values) else ""
    return _cell(mean, deviation if len(values) > 1 else None, missing)


def _cell(mean: float, deviation: float | None, missing: str = "") -> Cell:
    if deviation is None:
        return Cell(f"{mean:.3f}{missing}", parts=(f"{mean:.6g}", ""), number=round(mean, 3))
    parts = (f"{mean:.6g}", f"{deviation:.6g}")
    return Cell(f"{mean:.3f}±{deviation:.3f}{missing}", parts=parts, number=round(mean, 3))


def our_cell(campaign: Campaign, algorithm: str, criterion: str, metric: str, scale: float = 1.0) -> Cell:
    """Return one algorithm's mean over seeds; the text says so if not every seed has the number."""
    values = list(campaign.values(algorithm, criterion, metric).values())
    return mean_cell(values, scale, len(campaign.numbers.get(algorithm, {}).get(criterion, {})))


def paper_cell(number: PaperNumber | None, scale: float = 1.0) -> Cell:
    """Return the paper's mean and deviation.

    >>> paper_cell(PaperNumber(0.542, 0.006)).text
    '0.542±0.006'
    """
    return NOTHING if number is None else _cell(scale * number.mean, scale * number.std)


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


def distance_cell(values: Sequence[float], number: PaperNumber | None, lower: bool) -> Cell:
    """Return the difference of our mean to the paper's, in its deviations; with ! if ours is much worse.

    >>> distance_cell([0.572], PaperNumber(0.566, 0.009), True).text
    '+0.7'
    >>> distance_cell([0.600], PaperNumber(0.566, 0.009), True).text
    '+3.8!'
    """
    if number is None or not values:
        return NOTHING
    count = (spread(values)[0] - number.mean) / number.std
    reading = "within two" if abs(count) <= FAR else "better" if (count < 0) == lower else "worse"
    shown = f"{round(count, 1) + 0.0:+.1f}"  # + 0.0 turns -0.0 into 0.0
    return Cell(shown + "!" * (reading == "worse"), parts=(f"{count:.3f}", reading))


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
