"""The part of an HTML report on a study, from its study.json and predictions.parquet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedilc.algorithms.loss_registry import task_of
from fedilc.evaluation.intervals import Interval
from fedilc.evaluation.next_site import MOST_WITH_PRIOR
from fedilc.report.clinical_tables import clinical_tables
from fedilc.report.html.charts import (
    Chart,
    Line,
    Panel,
    Scale,
    agreement_charts,
    band,
    common_limits,
    curves,
)
from fedilc.report.html.page import Part, make_part, settings_table
from fedilc.report.html.prediction_charts import prediction_charts
from fedilc.report.score_tables import Study, headline, interval, means_table, scores_table
from fedilc.report.study_files import read_study
from fedilc.report.study_tables import (
    against_tables,
    chance,
    choices_table,
    comparison_tables,
    next_site_notes,
    next_site_rows,
    next_site_tables,
)
from fedilc.report.tables import TableData, words
from fedilc.studies.federated.participation import Participation
from fedilc.studies.study.comparators import ESTIMATED
from fedilc.studies.study.declaration import declaration
from fedilc.studies.study.verdict import NAMES


def study_part(folder: Path) -> Part:
    """Return the part on the study in a folder."""
    study = read_study(folder)
    alarm = [f"Alarm: {study['alarm']}"] if study.get("alarm") else []
    metric, given = NAMES[study["deciding_metric"]], study["settings"]
    means, lines = _rows(study, study["means"]), _lines(study)
    return make_part(
        "study.html.jinja",
        study["name"],
        "study",
        (*alarm, *study["verdict"], declaration(study.get("protocol"))),
        study=study,
        metric=metric,
        next_site=_next_site(study),
        examples=sum(study["silos"][site]["examples"] for site in study["held_out"]),
        chance=chance(study),
        means=_panel(study, f"{metric}, mean over sites", means, [row[2] for row in means]),
        means_table=means_table(study),
        sites=_sites(study),
        scores=scores_table(study),
        differences=_differences(study),
        against=[replace(table, title="Mean differences") for table in against_tables(study)],
        comparisons=comparison_tables(study),
        lines=[(line.label, line.colour) for line in lines],
        curves=_curves(lines),
        predicted=prediction_charts(study),
        clinical={table.name: table for table in clinical_tables(study)},
        agreement=agreement_charts(study.get("agreement") or {}),
        choices=choices_table(study),
        took_part=_took_part(study["name"], Participation.read(folder)),
        settings=settings_table("Settings of the study", study["name"], given, {"value": given}),
    )


def _took_part(name: str, found: Participation) -> TableData | None:
    """Return which silos took part in a study over a network, and when; None if all tables were here."""
    rows = [
        (silo, part.joined or "-", part.left or "-", part.reason or "")
        for silo, part in sorted(found.parts.items())
    ]
    columns = words("silo", "joined first", "left", "why")
    return TableData.of("took-part", name, "Who took part", columns, rows) if rows else None


def _rows(study: Study, found: Mapping[str, Any]) -> list[tuple[str, int, Interval]]:
    """Return the deciding score of each method that has been trained here, and its colour."""
    return [
        (method, colour, interval(found[method][study["deciding_metric"]]))
        for colour, method in enumerate(study["methods"])
        if method in found
    ]


def _by_method(
    study: Study,
    title: str,
    found: Mapping[str, list[tuple[str, Interval]]],
    form: str = "%.3f",
    line: float | None = None,
) -> dict[str, Panel]:
    """Return a panel per method with a row per site, all between the same ends; `title` has a {}."""
    every = [one for rows in found.values() for _, one in rows]
    limits = common_limits(every) if line is None else _limits_below(line, every)
    return {
        method: Panel(
            title.format(method),
            [(site, study["methods"].index(method), one) for site, one in rows],
            limits,
            "site",
            form,
            line=line or 0.0,
        )
        for method, rows in found.items()
    }


def _next_site(study: Study) -> dict[str, Any] | None:
    """Return the forest plots, whose last row is the next site; None if too few sites have the score."""
    drawn = {method: rows for method in study["methods"] if (rows := next_site_rows(study, method))}
    first = headline(study)
    if first not in drawn:
        return None
    panels = _by_method(study, f"{NAMES[study['deciding_metric']]} of {{}}", drawn, line=chance(study))
    return {
        "first": panels.pop(first),
        "notes": next_site_notes(study, first),
        "others": list(panels.values()),
        "tables": next_site_tables(study),
    }


def _sites(study: Study) -> list[Panel]:
    by_site = {site: _rows(study, found) for site, found in study["sites"].items()}
    every = [row[2] for rows in by_site.values() for row in rows]
    return [_panel(study, f"{site} ({_size(study, site)})", rows, every) for site, rows in by_site.items()]


def _panel(
    study: Study, title: str, rows: Sequence[tuple[str, int, Interval]], among: Sequence[Interval]
) -> Panel:
    """Return a panel of the deciding score, with room for the other intervals and for the line of chance."""
    line = chance(study)
    if line is None:
        return Panel(title, rows, common_limits(among))
    return Panel(title, rows, _limits_below(line, among), line=line)


def _limits_below(line: float, among: Iterable[Interval]) -> Scale:
    """Return ends that hold the intervals and a line, with some room around the line."""
    ends = Interval(line, line - 0.02, line + 0.02)
    return common_limits([ends, *among])


def _size(study: Study, site: str) -> str:
    silo = study["silos"][site]
    events = silo.get("classes", {}).get("1", 0)
    if task_of(study["loss"]) != "binary" or events is None:
        return f"{silo['examples']:,} examples"
    return f"{events:,} events and {silo['examples'] - events:,} non-events"


def _differences(study: Study) -> list[Panel]:
    """Return how methods differ from the reference in the deciding score: here, on average, at the next."""
    metric, sites = study["deciding_metric"], {}
    for method, found in study["comparisons"].get(metric, {}).items():
        rows = [(site, interval(one)) for site, one in found["by_site"].items()]
        rows.append(("mean over sites", interval(found.get("over_sites") or found["difference"])))
        following = study["next_site_differences"][metric][method]
        if following["low"] is not None and following["sites"] > MOST_WITH_PRIOR:
            ends = (following[end] for end in ("mean", "low", "high"))
            rows.append(("next site", Interval(*ends)))
        sites[method] = rows
    return list(_by_method(study, f"{{}} minus {study['reference']}", sites, "%+.3f").values())


def _lines(study: Study) -> list[Line]:
    """Return the losses by which rounds were chosen: each method's mean with its range."""
    drawn = []
    for colour, method in enumerate(study["methods"]):
        if method in (*ESTIMATED, *study.get("regressions", ())):  # trees, or no round to choose
            continue
        found = [methods[method]["curve"] for methods in study["choices"].values() if method in methods]
        line = band(method, colour, [{int(r): loss for r, loss in one.items()} for one in found])
        if line is not None:
            drawn.append(line)
    return drawn


def _curves(lines: list[Line]) -> list[Chart]:
    """Return a chart of all means, and one per method that has a range."""
    if not lines:
        return []
    means = [Line(line.label, line.colour, line.x, line.y) for line in lines]
    single = [curves(line.label, "round", [line], lines) for line in lines if line.low is not None]
    return [curves("Means of all methods", "round", means, lines), *single]
