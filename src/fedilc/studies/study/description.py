"""Who is in a study: the flow of rows, what each model is developed on, and the variables per site.

The standardised difference of a held-out site from the sites that its model is developed on is

    numbers       (m1 - m0) / sqrt((s1^2 + s0^2) / 2), of means m and standard deviations s
    categories    |p1 - p0| / sqrt((p1 (1 - p1) + p0 (1 - p0)) / 2), of the category in which it is largest

It does not depend on the number of rows. Missing values are left out of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
import polars as pl

from fedilc.algorithms.loss_registry import has_classes
from fedilc.data.tables.column_values import in_order, names_of, numbers_of
from fedilc.studies.study.data import StudyArrays, StudyData, StudyTables
from fedilc.studies.study.plan import StudyPlan

_FEW_NUMBERS = 5  # a column of so few different numbers is described by their counts


def description(plan: StudyPlan) -> dict[str, Any]:
    """Return what study.json says of the study's rows, developments and variables."""
    facts = {"flow": flow(plan.data), "development": [development(plan, site) for site in plan.held_out]}
    return facts | ({"variables": variables(plan)} if isinstance(plan.data, StudyTables) else {})


def flow(data: StudyData) -> dict[str, Any]:
    """Return how many rows of each site were read, have no label, and are used; and why others are not."""
    silos = data.tables.silos if isinstance(data, StudyTables) else {}
    unlabelled = {site: silos[site].unlabelled if site in silos else 0 for site in data.silos}
    used = {site: len(data.labels[site]) for site in data.silos}
    return {
        "left_out": dict(data.tables.left_out) if isinstance(data, StudyTables) else {},
        "sites": {
            site: {
                "read": used[site] + unlabelled[site],
                "without_label": unlabelled[site],
                "used": used[site],
            }
            for site in data.silos
        },
    }


def development(plan: StudyPlan, site: str) -> dict[str, Any]:
    """Return the sizes of the sites that the models for a held-out site are developed on, and its own.

    "informing" is what limits a model: the examples of the rarest class, or all examples of a quantity.
    """
    data = plan.data
    others = [name for name in data.silos if name != site]
    labels = np.concatenate([data.labels[name] for name in others])
    inputs = _inputs(data, others)
    informing = len(labels)
    if has_classes(data.loss):
        counts = np.unique(labels, return_counts=True)[1]
        informing = int(counts.min()) if len(counts) > 1 else 0
    return {
        "held_out": site,
        "sites": len(others),
        "examples": len(labels),
        "informing": informing,
        "inputs": inputs,
        "per_input": None if inputs is None else informing / inputs,
        "held_out_examples": len(data.labels[site]),
    }


def _inputs(data: StudyData, training: Sequence[str]) -> int | None:
    """Return how many numbers describe an example; None for images."""
    if isinstance(data, StudyTables):
        return len(data.tables.fit(list(training)).columns)
    return (
        int(next(iter(data.x.values())).shape[1]) if isinstance(data, StudyArrays) and data.is_table else None
    )


def variables(plan: StudyPlan) -> list[dict[str, Any]]:
    """Return each column in use: per site, of all sites, and of a held-out site beside the others."""
    assert isinstance(plan.data, StudyTables)
    tables = plan.data.tables
    fitted = tables.fit(list(tables.silos))
    found = []
    for feature in fitted.features:
        columns = {}
        for site, table in tables.silos.items():
            empty = pl.Series(feature.name, [None] * len(table.frame), dtype=pl.Float64)
            given = table.frame[feature.name] if feature.name in table.frame.columns else empty
            read = feature.read(given, fitted.missing)[1]
            columns[site] = numbers_of(read) if feature.kind == "number" else names_of(read)
        found.append({"name": feature.name, **variable(columns, plan.held_out)})
    return found


def variable(columns: Mapping[str, pl.Series], held_out: Sequence[str]) -> dict[str, Any]:
    """Return a column's summary by site, over all sites, and its standardised difference by held-out site.

    >>> found = variable({"a": pl.Series([1.0, 2.0, None]), "b": pl.Series([3.0, 4, 5, 6, 7])}, ["a"])
    >>> found["sites"]["a"]["missing"], round(found["differences"]["a"], 3)
    (1, -3.3)
    """
    every = pl.concat(list(columns.values()))
    if every.dtype.is_numeric() and every.drop_nulls().n_unique() <= _FEW_NUMBERS:
        columns = {site: _named(column) for site, column in columns.items()}
        every = pl.concat(list(columns.values()))
    rest = {site: [column for name, column in columns.items() if name != site] for site in held_out}
    others = {site: pl.concat(parts) for site, parts in rest.items()}
    return {
        "sites": {site: summary(column) for site, column in columns.items()},
        "all": summary(every),
        "others": {site: summary(column) for site, column in others.items()},
        "differences": {
            site: standardised_difference(columns[site], column) for site, column in others.items()
        },
    }


def _named(numbers: pl.Series) -> pl.Series:
    """Return numbers as names."""
    return pl.Series(
        numbers.name, [None if one is None else f"{one:g}" for one in numbers.to_list()], pl.String
    )


def summary(values: pl.Series) -> dict[str, Any]:
    """Return how many values there are and how many are missing; quartiles, or the counts of categories.

    >>> summary(pl.Series([1.0, 3.0, 2.0, None]))["quartiles"], summary(pl.Series(["x", "y", "x"]))["counts"]
    ([1.5, 2.0, 2.5], {'x': 2, 'y': 1})
    """
    known = values.drop_nulls()
    facts: dict[str, Any] = {"rows": len(values), "missing": len(values) - len(known)}
    if not values.dtype.is_numeric():
        counts = dict(known.value_counts().iter_rows())
        return facts | {"counts": {name: counts[name] for name in in_order(counts)}}
    if not len(known):
        return facts
    return facts | {"quartiles": np.quantile(known.to_numpy(), (0.25, 0.5, 0.75)).tolist()}


def standardised_difference(held_out: pl.Series, others: pl.Series) -> float | None:
    """Return the standardised difference of two groups; None if it is not defined, or infinite.

    >>> standardised_difference(pl.Series([1.0, 3.0]), pl.Series([2.0, 4.0]))
    -1.0
    >>> round(standardised_difference(pl.Series(["m", "m", "f", "f"]), pl.Series(["m", "f", "f", "f"])), 3)
    0.535
    """
    groups = [held_out.drop_nulls(), others.drop_nulls()]
    if not all(map(len, groups)):
        return None
    if all(group.dtype.is_numeric() for group in groups):
        one, other = (group.to_numpy() for group in groups)
        return _difference((one.mean(), one.var()), (other.mean(), other.var()))
    counts = [dict(group.value_counts().iter_rows()) for group in groups]
    found = []
    for name in counts[0].keys() | counts[1].keys():
        one, other = (of.get(name, 0) / len(group) for of, group in zip(counts, groups, strict=True))
        found.append(_difference((one, one * (1 - one)), (other, other * (1 - other))))
    return None if None in found else max(abs(one) for one in found if one is not None)


def _difference(one: tuple[float, float], other: tuple[float, float]) -> float | None:
    """Return the difference of two means in units of the root of their mean variance."""
    spread = (one[1] + other[1]) / 2
    if spread == 0:
        return 0.0 if one[0] == other[0] else None
    return float((one[0] - other[0]) / sqrt(spread))
