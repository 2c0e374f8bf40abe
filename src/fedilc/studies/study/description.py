"""Who is in a study: the flow of rows, what each model is developed on, and the variables per site.

The standardised difference of a held-out site from the sites that its model is developed on is

    numbers       (m1 - m0) / sqrt((s1^2 + s0^2) / 2), of means m and standard deviations s
    categories    |p1 - p0| / sqrt((p1 (1 - p1) + p0 (1 - p0)) / 2), of the category in which it is largest

It does not depend on the number of rows. Missing values are left out of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
import polars as pl

from fedilc.algorithms.loss_registry import has_classes
from fedilc.data.tables.column_values import in_order, names_of, numbers_of
from fedilc.data.tables.preprocessing import Preprocessing
from fedilc.data.tables.silo_tables import SiloTable
from fedilc.evaluation.estimates import NO_FLOORS, Floors
from fedilc.studies.study.data import StudyArrays, StudyData, StudyTables
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.site_scores import MOST_LEVELS, SiteDescription, Variable

_FEW_NUMBERS = 5  # a column of so few different numbers is described by their counts


def description(plan: StudyPlan, silos: Mapping[str, SiteDescription]) -> dict[str, Any]:
    """Return what study.json says of the study's rows, developments and variables."""
    data = plan.data
    facts: dict[str, Any] = {
        "flow": flow(data, silos),
        "development": [development(plan, site) for site in plan.held_out],
    }
    if any(one.variables for one in silos.values()):
        rows = data if isinstance(data, StudyTables) else None
        facts["variables"] = variables(silos, plan.held_out, rows)
    return facts


def descriptions(data: StudyData, floors: Floors = NO_FLOORS) -> dict[str, SiteDescription]:
    """Return the descriptions of all silos, if their rows are here; without variables for pictures."""
    if not isinstance(data, StudyTables):
        return {silo: SiteDescription(silo=silo, unlabelled=0) for silo in data.silos}
    fitted = data.tables.fit(list(data.tables.silos))
    return {silo: describe_site(table, fitted, floors) for silo, table in data.tables.silos.items()}


def flow(data: StudyData, silos: Mapping[str, SiteDescription]) -> dict[str, Any]:
    """Return how many rows of each site were read, have no label, and are used; and why others are not.

    A site that does not tell how many have no label has None there, and for the rows that were read.
    """
    unlabelled = {site: silos[site].unlabelled if site in silos else None for site in data.silos}
    used = {site: len(data.labels[site]) for site in data.silos}
    return {
        "left_out": dict(data.tables.left_out) if isinstance(data, StudyTables) else {},
        "sites": {
            site: {
                "read": None if without is None else used[site] + without,
                "without_label": without,
                "used": used[site],
            }
            for site, without in unlabelled.items()
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
    fit = data.tables.fit if isinstance(data, StudyTables) else getattr(data, "fit", None)
    if fit is not None:
        return len(fit(list(training)).columns)
    return (
        int(next(iter(data.x.values())).shape[1]) if isinstance(data, StudyArrays) and data.is_table else None
    )


def describe_site(table: SiloTable, fitted: Preprocessing, floors: Floors = NO_FLOORS) -> SiteDescription:
    """Return the description of a silo's table; `fitted` is the preprocessing that fits all silos."""
    few = 0 < table.unlabelled < floors.min_cell
    return SiteDescription(
        silo=table.name,
        unlabelled=None if few else table.unlabelled,
        variables=tuple(describe_column(*column, floors) for column in _columns(table, fitted)),
    )


def describe_column(name: str, values: pl.Series, floors: Floors = NO_FLOORS) -> Variable:
    """Return what is told of a column of numbers or names.

    All rows are known, so that the rows that are not told of must be enough together: if they are not, the
    next smallest count is not told either.

    >>> found = describe_column("sex", pl.Series(["m"] * 12 + ["f"] * 11 + ["x"]), Floors(10, 10))
    >>> found.counts, found.missing
    ({'m': 12}, 0)
    """
    known, least = values.drop_nulls(), floors.min_cell
    numeric = values.dtype.is_numeric()
    names = _named(known) if numeric else known
    levels = (
        dict(names.value_counts().iter_rows()) if not numeric or known.n_unique() <= _FEW_NUMBERS else None
    )
    rows = len(values)
    if levels is not None and len(levels) > MOST_LEVELS:
        levels = None
    cells = {str(name): count for name, count in levels.items()} if levels is not None else {"": len(known)}
    told = _told([rows - len(known), *cells.values()], least)
    facts: dict[str, Any] = {"name": name, "rows": rows, "missing": told[0]}
    if levels is not None:
        at = {name: count for name, count in zip(cells, told[1:], strict=True) if count is not None}
        facts["counts"] = {name: at[name] for name in in_order(at)}
        facts["other"] = len(at) < len(cells)
    # The mean of few different numbers tells how many rows have each: all of them may be told, or none.
    if numeric and len(known) >= max(1, least) and not facts.get("other"):
        numbers = known.to_numpy()
        facts |= {"mean": float(numbers.mean()), "deviation": float(numbers.std())}
        if least == 1:
            facts["quartiles"] = tuple(np.quantile(numbers, (0.25, 0.5, 0.75)).tolist())
    return Variable(**facts)


def _told(cells: Sequence[int], least: int) -> list[int | None]:
    """Return the counts that may be told, of parts of rows whose number is known."""
    hidden = {place for place, count in enumerate(cells) if 0 < count < least}
    rest = sorted((place for place, count in enumerate(cells) if count >= least), key=lambda at: cells[at])
    while hidden and rest and sum(cells[at] for at in hidden) < least:
        hidden.add(rest.pop(0))
    return [None if place in hidden else count for place, count in enumerate(cells)]


def _columns(table: SiloTable, fitted: Preprocessing) -> Iterator[tuple[str, pl.Series]]:
    """Yield each column in use as numbers or names."""
    for feature in fitted.features:
        empty = pl.Series(feature.name, [None] * len(table.frame), dtype=pl.Float64)
        given = table.frame[feature.name] if feature.name in table.frame.columns else empty
        read = feature.read(given, fitted.missing)[1]
        yield feature.name, numbers_of(read) if feature.kind == "number" else names_of(read)


def _named(numbers: pl.Series) -> pl.Series:
    """Return numbers as names."""
    return pl.Series(
        numbers.name, [None if one is None else f"{one:g}" for one in numbers.to_list()], pl.String
    )


def variables(
    silos: Mapping[str, SiteDescription], held_out: Sequence[str], rows: StudyTables | None = None
) -> list[dict[str, Any]]:
    """Return each column in use: per site, of all sites, and of a held-out site beside the others.

    Quartiles of several sites together need their rows.
    """
    columns = {}
    if rows is not None:
        fitted = rows.tables.fit(list(rows.tables.silos))
        columns = {site: dict(_columns(table, fitted)) for site, table in rows.tables.silos.items()}
    of_site = {site: {one.name: one for one in found.variables} for site, found in silos.items()}
    names = dict.fromkeys(name for found in of_site.values() for name in found)
    return [
        {
            "name": name,
            **variable(
                {site: found[name] for site, found in of_site.items() if name in found},
                held_out,
                {site: found[name] for site, found in columns.items()},
            ),
        }
        for name in names
    ]


def variable(
    sites: Mapping[str, Variable], held_out: Sequence[str], rows: Mapping[str, pl.Series] | None = None
) -> dict[str, Any]:
    """Return a column's summary by site, over all sites, and its standardised difference by held-out site.

    >>> sites = {"a": pl.Series([1.0, 2.0, None]), "b": pl.Series([3.0, 4, 5, 6, 7])}
    >>> found = variable({site: describe_column("x", one) for site, one in sites.items()}, ["a"])
    >>> found["sites"]["a"]["missing"], round(found["differences"]["a"], 3)
    (1, -3.3)
    """
    levels = {level for one in sites.values() for level in one.counts or {}}
    counted = all(one.counts is not None for one in sites.values())
    if counted and (len(levels) <= _FEW_NUMBERS or not any(one.mean is not None for one in sites.values())):
        sites = {
            site: one.model_copy(update={"mean": None, "quartiles": None}) for site, one in sites.items()
        }
    else:
        sites = {site: one.model_copy(update={"counts": None}) for site, one in sites.items()}
    others = {site: [name for name in sites if name != site] for site in held_out if site in sites}

    def several(names: Sequence[str]) -> dict[str, Any]:
        """Return the summary of several sites."""
        found = summary(together([sites[name] for name in names]))
        told = all(one.quartiles is not None for one in sites.values() if one.mean is not None)
        if rows and told and "counts" not in found:
            known = np.concatenate([rows[name].drop_nulls().to_numpy() for name in names])
            found |= {"quartiles": np.quantile(known, (0.25, 0.5, 0.75)).tolist()} if len(known) else {}
        return found

    return {
        "sites": {site: summary(one) for site, one in sites.items()},
        "all": several(list(sites)),
        "others": {site: several(names) for site, names in others.items()},
        "differences": {
            site: standardised_difference(sites[site], together([sites[name] for name in names]))
            for site, names in others.items()
        },
    }


def summary(found: Variable) -> dict[str, Any]:
    """Return how many values there are and how many are missing; quartiles, or the counts of categories.

    >>> summary(describe_column("x", pl.Series([1.0, 3, 2, 5, 7, 8, None])))["quartiles"]
    [2.25, 4.0, 6.5]
    """
    facts: dict[str, Any] = {"rows": found.rows, "missing": found.missing}
    if found.counts is not None:
        rest = {"other": True} if found.other else {}
        return facts | {"counts": {name: found.counts[name] for name in in_order(found.counts)}} | rest
    if found.quartiles is not None:
        return facts | {"quartiles": list(found.quartiles)}
    return facts | ({} if found.mean is None else {"mean": found.mean, "deviation": found.deviation})


def together(parts: Sequence[Variable]) -> Variable:
    """Return a column of several silos; what one of them does not tell is not known."""
    facts: dict[str, Any] = {"name": parts[0].name, "rows": sum(one.rows for one in parts)}
    facts["missing"] = _sum([one.missing for one in parts])
    if all(one.counts is not None for one in parts):
        levels = dict.fromkeys(level for one in parts for level in one.counts or {})
        sums = {name: _sum([_count(one, name) for one in parts]) for name in levels}
        facts["counts"] = {name: count for name, count in sums.items() if count is not None}
        facts["other"] = any(one.other for one in parts)
    moments = [_moments(one) for one in parts if one.mean is not None]
    count = sum(n for n, _, _ in moments)
    if count:
        mean = sum(n * m for n, m, _ in moments) / count
        squares = sum(n * (s**2 + (m - mean) ** 2) for n, m, s in moments)
        facts |= {"mean": mean, "deviation": sqrt(squares / count)}
    return Variable(**facts)


def _count(found: Variable, level: str) -> int | None:
    """Return how many rows have a value; None if it may be one that is not told of."""
    return (found.counts or {}).get(level, None if found.other else 0)


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _moments(found: Variable) -> tuple[int, float, float]:
    """Return how many numbers there are, as far as that is told, their mean and their deviation."""
    return found.rows - (found.missing or 0), found.mean or 0.0, found.deviation or 0.0


def standardised_difference(held_out: Variable, others: Variable) -> float | None:
    """Return the standardised difference of two groups; None if it is not known, not defined, or infinite.

    >>> one, other = (describe_column("x", pl.Series(values)) for values in ([1.0, 3.0], [2.0, 4.0]))
    >>> standardised_difference(*(of.model_copy(update={"counts": None}) for of in (one, other)))
    -1.0
    >>> groups = (["m", "m", "f", "f"], ["m", "f", "f", "f"])
    >>> round(standardised_difference(*(describe_column("sex", pl.Series(of)) for of in groups)), 3)
    0.535
    """
    if held_out.counts is not None and others.counts is not None:
        counts = (held_out.counts, others.counts)
        sizes = [sum(of.values()) for of in counts]
        if not all(sizes) or held_out.other or others.other:
            return None
        found = []
        for name in counts[0].keys() | counts[1].keys():
            one, other = (of.get(name, 0) / size for of, size in zip(counts, sizes, strict=True))
            found.append(_difference((one, one * (1 - one)), (other, other * (1 - other))))
        return None if None in found else max(abs(one) for one in found if one is not None)
    if held_out.mean is None or others.mean is None:
        return None
    ends = ((of.mean or 0.0, (of.deviation or 0.0) ** 2) for of in (held_out, others))
    return _difference(*ends)


def _difference(one: tuple[float, float], other: tuple[float, float]) -> float | None:
    """Return the difference of two means in units of the root of their mean variance."""
    spread = (one[1] + other[1]) / 2
    if spread == 0:
        return 0.0 if one[0] == other[0] else None
    return float((one[0] - other[0]) / sqrt(spread))
