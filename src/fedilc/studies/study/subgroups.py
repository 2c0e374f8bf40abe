"""Subgroups of a study's examples by a column of the tables, which need not be an input of the models."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedilc.algorithms.loss_registry import task_of
from fedilc.data.tables.column_values import column_values, names_of, numbers_of
from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.silo_tables import SiloTable
from fedilc.errors import ConfigError, nearest
from fedilc.evaluation.intervals import score_interval
from fedilc.evaluation.metrics import SCORES
from fedilc.progress import counted
from fedilc.studies.study.data import StudyData, StudyTables

_FEW_NUMBERS, _MOST_LEVELS = 5, 20
_ADDED = ("log_loss", "brier", "accuracy", "calibration_intercept", "rmse", "mae")
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


def subgroup_facts(
    loss: str,
    text: str,
    levels: Levels,
    places: Mapping[str, tuple[tuple[str, ...], NDArray[Any], Mapping[str, list[NDArray[Any]]]]],
    patients_of: Callable[[Sequence[str]], NDArray[np.intp] | None] = lambda _: None,
    models_at: Callable[[Sequence[str], str], NDArray[np.intp] | None] = lambda _, __: None,
) -> list[dict[str, Any]]:
    """Return the scores in each level at each place: its examples, and every method's scores with intervals.

    Args:
        loss: its name.
        text: the subgroup as it was given.
        levels: of each example, by site.
        places: by name, the sites there, their labels, and each method's outputs by seed, in that order.
        patients_of: returns whose each example of these sites is, if patients have several.
        models_at: returns which model of a method predicts each example of these sites, if there are several.
    """
    found = []
    for place, (sites, y, methods) in counted(f"places with {text}", list(places.items())):
        own = np.concatenate([levels[site] for site in sites])
        everyone = patients_of(sites)
        for level in sorted(set(own.tolist())):
            rows = own == level
            patients = None if everyone is None else everyone[rows]
            facts: dict[str, Any] = {
                "subgroup": text,
                "level": level,
                "place": place,
                "examples": int(rows.sum()),
            }
            if task_of(loss) == "binary":
                facts["events"] = int((y[rows] > 0.5).sum())
            scores = {}
            for method, outputs in methods.items():
                models, kept = models_at(sites, method), [one[rows] for one in outputs]
                parted = None if models is None else models[rows]
                names = [name for name in SCORES[task_of(loss)] if len(sites) == 1 or _added(loss, name)]
                scores[method] = {
                    name: asdict(score_interval(loss, name, y[rows], kept, patients, parted))
                    for name in names
                }
            found.append({**facts, "methods": scores})
    return found


def _added(loss: str, score: str) -> bool:
    """Return whether a score is one of several sites too: others compare predictions of different models.

    Each example adds its own part to it, or it is the AUROC, which counts pairs of one model.
    """
    return score in _ADDED or (task_of(loss) == "binary" and score == "auroc")
