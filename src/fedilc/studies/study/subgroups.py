"""Subgroups of a study's examples by a column of the tables, which need not be an input of the models."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedilc.data.tables.column_values import column_values, names_of, numbers_of
from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.silo_tables import SiloTable
from fedilc.errors import ConfigError, nearest
from fedilc.evaluation.estimates import Floors
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


def told_levels(
    subgroups: Mapping[str, NDArray[np.str_]], classes: NDArray[Any], weights: NDArray[Any], floors: Floors
) -> dict[str, dict[str, NDArray[np.bool_]]]:
    """Return by subgroup and level the rows that are told of; what is left of a subgroup has the level "".

    A level is not told of if it, or a difference between it and a level of another subgroup that holds it or
    is held by it, has too few examples of a class, and neither is the next smallest until those that are left
    are enough together: the numbers of all examples are known.

    Args:
        subgroups: by subgroup, the level of each example.
        classes: the class of each example; one number for quantities.
        weights: what each example counts, less than one if its patient has others.
        floors: how many examples of each class a level needs.
    """
    every = np.unique(classes)

    def enough(of: NDArray[np.bool_]) -> bool:
        """Return whether these rows have enough examples of each class."""
        sums = [float(weights[of & (classes == one)].sum()) for one in every]
        return not of.any() or floors.allow(min(sums), max(sums))

    found: dict[str, dict[str, NDArray[np.bool_]]] = {}
    for text, levels in subgroups.items():
        masks = {level: levels == level for level in sorted(set(levels.tolist()))}
        others = [mask for of in found.values() for mask in of.values()]
        told = {
            level: mask
            for level, mask in masks.items()
            if enough(mask) and all(enough(part) for other in others for part in _differences(mask, other))
        }
        rest = ~np.any([*told.values(), np.zeros(len(levels), bool)], axis=0)
        while told and rest.any() and not enough(rest):
            smallest = min(told, key=lambda level: int(told[level].sum()))
            rest |= told.pop(smallest)
        found[text] = told | ({"": rest} if rest.any() else {})
    return found


def _differences(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Return the rows by which one of two sets exceeds the other, which it holds; none if neither does."""
    both = one & other
    if (both == one).all() or (both == other).all():
        return [one ^ other]
    return []
