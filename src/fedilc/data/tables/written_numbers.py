"""Recognise numbers that are written as text: limits such as <5, thousands separators and decimal commas."""

from __future__ import annotations

import polars as pl

from fedilc.data.tables.csv_reader import MISSING

LIMIT = r"^\s*[<>≤≥]\s*=?\s*"
_SIGN = r"^[-+]?"
_PLAIN = _SIGN + r"(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_GROUPED_BY_COMMAS = _SIGN + r"[1-9]\d{0,2}(,\d{3})+(\.\d*)?$"
_GROUPED_BY_POINTS = _SIGN + r"[1-9]\d{0,2}(\.\d{3})+(,\d*)?$"
_DECIMAL_COMMA = _SIGN + r"\d*,\d+$"
_DECIMAL_POINT = _SIGN + r"\d*\.\d+$"
_ONE_GROUP = _SIGN + r"[1-9]\d{0,2}[.,]\d{3}$"
_NUMBER_SHARE = 0.8


def plain_numbers(text: pl.Series, known: bool = False) -> pl.Series:
    """Return texts with numbers as Python writes them; a limit such as <5 becomes the limit itself.

    A column is changed only if 0.8 of its cells are numbers then, and limits only if fewer different ones
    occur than other numbers, so that names such as "<18" and "18-64" remain. `known` says that the column
    holds numbers, so that both conditions are left out. The column decides what a comma means: 1,234 is a
    number only if another cell shows whether it is 1234 or 1.234.

    >>> plain_numbers(pl.Series(["1,234.50", "<5", "7", "8"])).to_list()
    ['1234.50', '5', '7', '8']
    >>> plain_numbers(pl.Series(["1,234", "850"])).to_list()
    ['1,234', '850']
    """
    cells = text.str.strip_chars()
    if cells.is_null().all() or not bool((cells.str.contains(LIMIT) | cells.str.contains(",")).any()):
        return text
    limits = cells.str.contains(LIMIT).fill_null(False)
    bare = _without_separators(cells.str.replace(LIMIT, ""))
    numbers = bare.str.contains(_PLAIN).fill_null(False)
    if not known and bare.filter(numbers & limits).n_unique() >= bare.filter(numbers & ~limits).n_unique():
        numbers &= ~limits
    missing = cells.str.to_lowercase().is_in(list(MISSING)).fill_null(True)
    if not known and int(numbers.sum()) < _NUMBER_SHARE * int((~missing).sum()):
        return text
    return pl.select(pl.when(numbers).then(bare).otherwise(cells).alias(text.name)).to_series()


def _without_separators(cells: pl.Series) -> pl.Series:
    """Return numbers with decimal points and no thousands separators, if the column shows which is which."""
    one_group = cells.str.contains(_ONE_GROUP)
    commas_group = (cells.str.contains(_GROUPED_BY_COMMAS) & ~one_group).any()
    points_group = (cells.str.contains(_GROUPED_BY_POINTS) & ~one_group).any()
    decimal_commas = (cells.str.contains(_DECIMAL_COMMA) & ~one_group).any()
    decimal_points = (cells.str.contains(_DECIMAL_POINT) & ~one_group).any()
    if (commas_group or decimal_points) and not (points_group or decimal_commas):
        return _where(cells, _GROUPED_BY_COMMAS, cells.str.replace_all(",", "", literal=True))
    if (points_group or decimal_commas) and not (commas_group or decimal_points):
        ungrouped = _where(cells, _GROUPED_BY_POINTS, cells.str.replace_all(".", "", literal=True))
        if not points_group:  # 1.234 beside 1,5 may be 1234 or 1.234
            ungrouped = _where(cells, _GROUPED_BY_POINTS, cells + " (unclear)")
        return ungrouped.str.replace(",", ".", literal=True)
    return cells


def _where(cells: pl.Series, pattern: str, changed: pl.Series) -> pl.Series:
    return pl.select(pl.when(cells.str.contains(pattern)).then(changed).otherwise(cells)).to_series()
