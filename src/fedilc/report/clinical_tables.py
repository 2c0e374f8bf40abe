"""The tables that reviewers of prediction models ask for, made from the content of study.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedilc.algorithms.loss_registry import task_of
from fedilc.data.tables.column_values import in_order
from fedilc.report.score_tables import Study, by_place, score_cell, score_column
from fedilc.report.tables import Cell, Column, TableData, words
from fedilc.studies.study.assessment import TREAT_ALL
from fedilc.studies.study.result import ALL_SITES
from fedilc.studies.study.verdict import NAMES

NOT_TOLD = "not told"


def clinical_tables(study: Study) -> list[TableData]:
    """Return all of them that a study has; one that was written by an older version has none."""
    described = [
        *flow_table(study),
        *development_table(study),
        *variables_table(study),
        *contrast_table(study),
    ]
    usual = [*calibration_table(study), *net_benefit_table(study), *edges_table(study)]
    return [*described, *usual, *subgroup_tables(study), *sensitivity_table(study)]


def sensitivity_table(study: Study) -> list[TableData]:
    """Return the mean scores with and without indicators of missing values."""
    found = study.get("sensitivity", {}).get("methods", {})
    rows = [
        (NAMES[metric], method, *cells, score_cell(one["difference"], "{:+.3f}"))
        for metric in study.get("metrics", [])
        for method, metrics in found.items()
        for one in [metrics[metric]]
        for cells in [tuple(score_cell(one[name]) for name in ("with", "without"))]
    ]
    columns = (
        *words("score", "method"),
        *(Column(name, (name, f"{name}_low", f"{name}_high")) for name in ("with", "without")),
        Column("without minus with [95 %]", ("difference", "low", "high")),
    )
    notes = (
        "Means over held-out sites and seeds; 95 % intervals over the examples of these sites.",
        "Without indicators, a missing number is the training sites' mean, and a missing name is in no "
        "category; all settings were chosen anew.",
    )
    return _table("sensitivity", study, "Without indicators of missing values", columns, rows, notes)


def subgroup_tables(study: Study) -> list[TableData]:
    """Return the scores by subgroup: over all held-out sites, and at each site if there are several."""
    given = [*study.get("together", {}).get("subgroups", []), *study.get("subgroups", [])]
    places = dict.fromkeys(one["place"] for one in given)
    first = next(iter(places), None)
    found = []
    each = "Subgroups at each held-out site"
    parts = [("subgroups", each, [*places])]
    if first == ALL_SITES or len(places) == 1:
        parts = [("subgroups", f"Subgroups at {first}", [first]), ("subgroups-by-site", each, [*places][1:])]
    for name, title, kept in parts:
        rows = [
            (_subgroup(one, with_place=title == each), method, *map(score_cell, scores.values()))
            for one in given
            if one["place"] in kept
            for method, scores in one["methods"].items()
        ]
        scored = [of for one in given if one["place"] in kept for of in one["methods"].values()]
        hidden = [_hidden(one) for one in given if one["place"] in kept and "reason" in one]
        columns = (*words("subgroup", "method"), *map(score_column, scored[0] if scored else ()))
        notes = ["Means over seeds; 95 % intervals over examples. Tests between subgroups are not made."]
        if first == ALL_SITES and name == "subgroups":
            notes.append("AUROC: over pairs of patients of the same site, since each site has its own model.")
        found += _table(name, study, title, columns, rows, (*notes, *hidden))
    return found


def _hidden(one: Mapping[str, Any]) -> str:
    """Return which levels of a subgroup a site does not tell of."""
    return f"{one['place']}: {one['subgroup']}, {one['level']} levels are not told of ({one['reason']})."


def _subgroup(one: Mapping[str, Any], *, with_place: bool) -> str:
    """Return the name of a subgroup with its size."""
    events = f", {one['events']} events" if "events" in one else ""
    return f"{one['place'] + ': ' if with_place else ''}{one['level']} ({one['examples']} examples{events})"


def flow_table(study: Study) -> list[TableData]:
    """Return how many rows were read, left out, and used."""
    if "flow" not in study:
        return []
    sites, left_out = study["flow"]["sites"], study["flow"]["left_out"]
    rows: list[tuple[object, ...]] = [
        (site, *(_known(found[name]) for name in ("read", "without_label", "used")))
        for site, found in sites.items()
    ]
    for reason, count in left_out.items():
        rows.append((reason, "not read" if count is None else count, "-", 0))
    columns_of = ([found[name] for found in sites.values()] for name in ("read", "without_label", "used"))
    sums = [None if None in of else sum(of) for of in columns_of]
    if sums[0] is not None:
        sums[0] += sum(count or 0 for count in left_out.values())
    rows.append(("total", *map(_known, sums)))
    columns = (*words("site, or why rows are left out"), "rows read", "without a label", "used")
    return [TableData.of("flow", study["name"], "Flow of rows", columns, rows)]


def _known(count: int | None) -> int | str:
    return NOT_TOLD if count is None else count


def development_table(study: Study) -> list[TableData]:
    """Return what the models for each held-out site were developed on, with events per input."""
    rows = [
        (
            one["held_out"],
            one["held_out_examples"],
            *(one[name] for name in ("sites", "examples", "informing")),
            "-" if one["inputs"] is None else one["inputs"],
            "-" if one["per_input"] is None else f"{one['per_input']:.1f}",
        )
        for one in study.get("development", [])
    ]
    if not rows:
        return []
    kind = {"binary": "events", "multiclass": "examples of the rarest class"}
    limits = kind.get(task_of(study["loss"]), "examples")
    columns = (
        *words("held-out site"),
        *("its examples", "sites", "examples", f"limiting {limits}", "inputs", f"{limits} per input"),
    )
    notes = ["Sites and examples are those that the models for the held-out site are developed on."]
    if limits == "events":
        notes.append("Events are those of the rarer outcome: events, or non-events if they are fewer.")
    notes.append("Inputs: numbers, categories and indicators of missing values, after preprocessing.")
    return [
        TableData.of("development", study["name"], "Development for each held-out site", columns, rows, notes)
    ]


def variables_table(study: Study) -> list[TableData]:
    """Return the variables of all sites and of each: table 1."""
    found = study.get("variables", [])
    sites = list(study["silos"])
    rows = [
        row
        for one in found
        for row in _variable_rows(one["name"], [one["all"], *(one["sites"][site] for site in sites)])
    ]
    columns = (*words("variable", ""), "all sites", *sites)
    notes = (
        "Numbers: median [quartiles] of the known values; mean (SD) where quartiles, which are values of "
        "patients, are not told or rows are not in one place. Categories, missing: rows (share of rows).",
    )
    return _table("variables", study, "Variables per site (table 1)", columns, rows, notes)


def contrast_table(study: Study) -> list[TableData]:
    """Return each held-out site beside the sites that its models are developed on."""
    rows = []
    for site in study["held_out"]:
        for one in study.get("variables", []):
            difference = one["differences"][site]
            shown = "-" if difference is None else f"{difference:.2f}"
            for _, part, *cells in _variable_rows(one["name"], [one["others"][site], one["sites"][site]]):
                name = f"{one['name']}: {part}" if part else one["name"]
                rows.append((site, name, *cells, shown))
                shown = ""
    columns = (*words("held-out site", "variable"), "development", "held out", "difference")
    notes = (
        "Difference: standardised, held out minus development: in standard deviations for numbers, and "
        "the largest over categories, without sign, for names. '-': not defined.",
    )
    title = "Development against held out"
    return _table("development-against-held-out", study, title, columns, rows, notes)


def _variable_rows(name: str, groups: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Return the rows of one variable: its quartiles or its categories, and its missing values."""
    rows: list[tuple[object, ...]] = []
    if any("quartiles" in group or "mean" in group for group in groups):
        rows.append((name, "", *map(_quartiles, groups)))
    names = dict.fromkeys(level for group in groups for level in group.get("counts", {}))
    rows += [
        (name, level, *(_share(_told(group, level), group["rows"]) for group in groups))
        for level in in_order(names)
    ]
    if any(group["missing"] != 0 for group in groups) or not rows:
        rows.append((name, "missing", *(_share(group["missing"], group["rows"]) for group in groups)))
    return rows


def _quartiles(found: Mapping[str, Any]) -> str:
    """Return the median and the quartiles.

    >>> _quartiles({"quartiles": [47.0, 54.5, 1260.0]})
    '54.5 [47, 1260]'
    """
    if "quartiles" not in found:
        return f"mean {found['mean']:.4g} (SD {found['deviation']:.4g})" if "mean" in found else "-"
    low, middle, high = (f"{value:.4g}" for value in found["quartiles"])
    return f"{middle} [{low}, {high}]"


def _told(group: Mapping[str, Any], level: str) -> int | None:
    """Return the rows with a value; None if it may be one that a site does not tell of."""
    found: int | None = group.get("counts", {}).get(level, None if group.get("other") else 0)
    return found


def _share(count: int | None, rows: int) -> str:
    """Return a count with its share.

    >>> _share(3, 12), _share(None, 12)
    ('3 (25%)', 'not told')
    """
    if count is None:
        return NOT_TOLD
    return f"{count} ({count / rows:.0%})" if rows else "-"


def calibration_table(study: Study) -> list[TableData]:
    """Return O:E and ICI per held-out site and method."""
    rows = [
        (place, method, score_cell(found["oe_ratio"]), score_cell(found["ici"]))
        for place, methods in by_place(study, "calibration").items()
        for method, found in methods.items()
    ]
    columns = (
        *words("site", "method"),
        Column("O:E [95 %]", ("oe_ratio", "low", "high")),
        Column("ICI [at least 95 %]", ("ici", "ici_low", "ici_high")),
    )
    notes = (
        "Means over seeds; 95 % intervals over examples.",
        "O:E: observed over expected events; above 1, risks are too low. ICI: mean distance between the "
        "predicted risks and the smooth calibration curve; 0 is ideal. Chance alone makes the value larger "
        "at small sites; its interval is that of a band that holds the whole curve with at least 95 %.",
        _together(study, "as if they were one site, so that the interval leaves out how sites differ"),
    )
    title = "Calibration: observed to expected events, and integrated calibration index"
    return _table("calibration", study, title, columns, rows, notes)


def _together(study: Study, what: str) -> str:
    """Return what the numbers of all held-out sites together are, or why there are none."""
    return f"All sites together: {study.get('together', {}).get('reason', what)}."


def net_benefit_table(study: Study) -> list[TableData]:
    """Return the net benefit at the thresholds, per held-out site and method."""
    thresholds = study.get("net_benefit", {}).get("thresholds", [])
    rows = [
        (place, method, *map(score_cell, of))
        for place, methods in by_place(study, "net_benefit").items()
        for method, of in methods.items()
    ]
    ends = ("value", "low", "high")
    at = (Column(f"at {p:g}", tuple(f"{end}_{p:g}" for end in ends)) for p in thresholds)
    columns = (*words("site", "method"), *at)
    notes = (
        "Means over seeds; 95 % intervals over examples.",
        "Net benefit at a threshold p: TP/n - FP/n p/(1-p). Treating nobody has 0. A method is useful at a "
        f"threshold if its net benefit is above 0 and above that of {TREAT_ALL!r}.",
    )
    return _table("net-benefit", study, "Net benefit by threshold", columns, rows, notes)


def edges_table(study: Study) -> list[TableData]:
    """Return the settings that were chosen at the edge of what was offered."""
    rows = [
        (
            *(one[name] for name in ("method", "setting", "edge")),
            f"{one['value']:g}",
            Cell(f"{one['sites']} of {one['of']}", parts=(str(one["sites"]), str(one["of"]))),
        )
        for one in study.get("edges", [])
    ]
    columns = (*words("method", "setting", "edge"), "value", Column("sites", ("sites", "of")))
    notes = ("The best value may lie beyond an edge at which most sites are: offer more values there.",)
    return _table("edges", study, "Choices at the edge of what was offered", columns, rows, notes)


def _table(
    name: str,
    study: Study,
    title: str,
    columns: tuple[object, ...],
    rows: Sequence[tuple[object, ...]],
    notes: tuple[str, ...],
) -> list[TableData]:
    return [TableData.of(name, study["name"], title, columns, rows, notes, grouped=True)] if rows else []
