"""The part of an HTML report on a study, from its study.json and predictions.parquet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedilc.algorithms.loss_name import task_of
from fedilc.evaluation.intervals import Interval
from fedilc.report.html.calibration import calibration_charts
from fedilc.report.html.charts import (
    Line,
    agreement_section,
    band,
    common_limits,
    curves,
    intervals,
    legend,
)
from fedilc.report.html.page import Part, command, facts, folded, grid, lines, note, settings_table, table
from fedilc.report.study_files import read_study
from fedilc.report.study_tables import (
    Study,
    choices_table,
    comparison_tables,
    interval,
    means_table,
    next_site_notes,
    next_site_rows,
    next_site_tables,
    scores_table,
)
from fedilc.studies.study.verdict import NAMES


def study_part(folder: Path) -> Part:
    """Return the part on the study in a folder."""
    study = read_study(folder)
    chosen = choices_table(study)
    sections = [
        *_next_site(study),
        ("Mean over held-out sites", _means(study)),
        ("Each site that took no part", _sites(study)),
        *_differences(study),
        ("Curves", _curves(study)),
        *calibration_charts(folder, study),
        *agreement_section(study.get("agreement") or {}),
        *([("Notes on the data", lines(study["notes"]))] if study["notes"] else []),
        (chosen.title, folded(f"{len(chosen.rows)} choices", table(chosen))),
        ("Settings and command", _settings(study)),
    ]
    alarm = [f"Alarm: {study['alarm']}"] if study.get("alarm") else []
    return Part(f"{study['name']}: study", (*alarm, *study["verdict"]), tuple(sections))


def _rows(study: Study, found: Mapping[str, Any]) -> list[tuple[str, int, Interval]]:
    """Return the deciding score of each method that has been trained here, and its colour."""
    return [
        (method, colour, interval(found[method][study["deciding_metric"]]))
        for colour, method in enumerate(study["methods"])
        if method in found
    ]


def _next_site(study: Study) -> list[tuple[str, str]]:
    """Return the forest plots, whose last row is the next site; none if too few sites have the score."""
    drawn = {method: rows for method in study["methods"] if (rows := next_site_rows(study, method))}
    if study["reference"] not in drawn:
        return []
    limits = common_limits(one for rows in drawn.values() for _, one in rows)
    panels = {
        method: intervals(
            f"{NAMES[study['deciding_metric']]} of {method}",
            [(label, study["methods"].index(method), one) for label, one in rows],
            limits,
            "site",
        )
        for method, rows in drawn.items()
    }
    first = panels.pop(study["reference"])
    told = "".join(map(note, next_site_notes(study, study["reference"])))
    others = folded("The same for every method", grid(panels.values(), "wide")) if panels else ""
    numbers = "".join(
        folded("All scores and differences", table(one, notes=False)) for one in next_site_tables(study)
    )
    return [("The next site", first + told + others + numbers)]


def _means(study: Study) -> str:
    name = NAMES[study["deciding_metric"]]
    examples = sum(study["silos"][site]["examples"] for site in study["held_out"])
    about = facts(
        [
            ("held-out sites", len(study["held_out"])),
            ("examples there", f"{examples:,}"),
            ("methods", len(study["settings"]["algorithms"])),
            ("seeds", study["settings"]["seeds"]),
            ("decided by", name),
        ]
    )
    rows = _rows(study, study["means"])
    drawn = intervals(f"{name}, mean over sites", rows, common_limits(row[2] for row in rows))
    scores = means_table(study)
    return about + drawn + "".join(map(note, scores.notes)) + folded("All scores", table(scores, notes=False))


def _sites(study: Study) -> str:
    by_site = {site: _rows(study, found) for site, found in study["sites"].items()}
    limits = common_limits(row[2] for rows in by_site.values() for row in rows)
    panels = (intervals(f"{site} ({_size(study, site)})", rows, limits) for site, rows in by_site.items())
    name = NAMES[study["deciding_metric"]]
    told = note(f"{name}, with 95 % intervals over each site's examples.")
    scores = table(scores_table(study), notes=False)
    return told + grid(panels, "wide") + folded("All scores at each site", scores)


def _size(study: Study, site: str) -> str:
    silo = study["silos"][site]
    if task_of(study["loss"]) != "binary":
        return f"{silo['examples']:,} examples"
    events = silo["classes"].get("1", 0)
    return f"{events:,} events and {silo['examples'] - events:,} non-events"


def _differences(study: Study) -> list[tuple[str, str]]:
    """Return the comparison with the reference, by site and over all scores."""
    metric = study["deciding_metric"]
    compared = study["comparisons"].get(metric)
    if not compared:
        return []
    sites = {
        method: [("all sites", interval(found["difference"]))]
        + [(site, interval(one)) for site, one in found["by_site"].items()]
        for method, found in compared.items()
    }
    limits = common_limits(one for rows in sites.values() for _, one in rows)
    reference = study["reference"]
    panels = (
        intervals(
            f"{method} minus {reference}",
            [(site, study["methods"].index(method), one) for site, one in rows],
            limits,
            "site",
            "{:+.3f}",
        )
        for method, rows in sites.items()
    )
    higher = "right" if metric in study["higher_is_better"] else "left"
    tests = "".join(map(table, comparison_tables(study)))
    told = note(
        f"Differences of {NAMES[metric]}. {higher.capitalize()} of the dashed line, the method is better "
        f"than {reference}."
    )
    return [(f"Compared with {reference}", grid(panels, "wide") + told + tests)]


def _curves(study: Study) -> str:
    """Return the losses by which rounds were chosen: all methods' means, and each method with its range."""
    drawn = []
    for colour, method in enumerate(study["methods"]):
        found = [methods[method]["curve"] for methods in study["choices"].values() if method in methods]
        line = band(method, colour, [{int(r): loss for r, loss in one.items()} for one in found])
        if line is not None:
            drawn.append(line)
    means = [Line(line.label, line.colour, line.x, line.y) for line in drawn]
    charts = [curves("Means of all methods", "round", means, drawn)]
    charts += [curves(line.label, "round", [line], drawn) for line in drawn if line.low is not None]
    told = note(
        "The loss by which the round and the settings were chosen, on the training sites alone: the mean "
        "over the held-out sites, and their range as a band."
    )
    return legend((line.label, line.colour) for line in drawn) + grid(charts) + told


def _settings(study: Study) -> str:
    line, given = study.get("command"), study["settings"]
    made = settings_table("Settings of the study", study["name"], given, {"value": given})
    return (command(line) if line else "") + made
