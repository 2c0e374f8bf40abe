"""Subgroups of a study's examples by a column of the tables, which need not be an input of the models."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedilc.data.tables.column_values import column_values, names_of, numbers_of
from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.silo_tables import SiloTable
from fedilc.errors import ConfigError, nearest
from fedilc.studies.study.data import StudyData, StudyTables

_FEW_NUMBERS, _MOST_LEVELS = 5, 20
_HOLDS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_HOLDS |= {"==": operator.eq, "!=": operator.ne}

Levels = Mapping[str, NDArray[np.str_]]  # by site, the level of each example


def subgroup_levels(data: StudyData, text: str) -> Levels:
    """Return the level of each example by a column, or by a comparison such as "age>=65".

    Numbers with more than a few values are divided at their median over all sites; missing values are a level
    of their own. Raise a `ConfigError` if no table has the column, or if it has too many names.
    """
    if not isinstance(data, StudyTables):
        raise ConfigError(f"`subgroups` is for tables, and {data.name} holds none; leave it out")
    tables = data.tables
    rule = LabelRule.parse(text)
    known = list(dict.fromkeys(name for table in tables.silos.values() for name in _columns(table)))
    column = text if text in known else rule.column
    if column not in known:
        hint = nearest(column, known)
        raise ConfigError(f"`subgroups` names the column {column!r}, which no file has{hint}")
    read = {
        site: column_values(_columns(table)[column], tables.settings.missing)[1]
        if column in _columns(table)
        else pl.Series(column, [None] * len(table.y), dtype=pl.Float64)
        for site, table in tables.silos.items()
    }
    if rule.comparison is not None and column == rule.column:
        return {site: _compared(values, rule.comparison, rule.bound, column) for site, values in read.items()}
    if all(values.dtype.is_numeric() for values in read.values()):
        numbers = pl.concat([numbers_of(values) for values in read.values()]).drop_nulls()
        if numbers.n_unique() > _FEW_NUMBERS:
            middle = float(np.median(numbers.to_numpy()))
            return {site: _compared(values, ">=", middle, column) for site, values in read.items()}
    found = {site: _named(names_of(values), column) for site, values in read.items()}
    every = {level for levels in found.values() for level in levels}
    if len(every) > _MOST_LEVELS:
        raise ConfigError(
            f"`subgroups` names {column!r}, which has {len(every)} different names; name a column with at "
            f"most {_MOST_LEVELS}"
        )
    return found


def _columns(table: SiloTable) -> Mapping[str, pl.Series]:
    """Return the columns of a table by name, those that are no inputs too."""
    return {column.name: column for frame in (table.frame, table.unused) for column in frame.get_columns()}


def _compared(values: pl.Series, sign: str, bound: float, column: str) -> NDArray[np.str_]:
    """Return on which side of a bound each value is."""
    opposite = {">": "<=", ">=": "<", "<": ">=", "<=": ">", "==": "!=", "!=": "=="}[sign]
    sides = (f"{column} {sign} {bound:g}", f"{column} {opposite} {bound:g}")
    held = [None if one is None else _HOLDS[sign](one, bound) for one in numbers_of(values).to_list()]
    return np.array([_missing(column) if one is None else sides[not one] for one in held], str)


def _named(names: pl.Series, column: str) -> NDArray[np.str_]:
    return np.array(
        [_missing(column) if one is None else f"{column} = {one}" for one in names.to_list()], str
    )


def _missing(column: str) -> str:
    return f"{column} missing"
