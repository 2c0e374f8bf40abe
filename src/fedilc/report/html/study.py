"""The part of an HTML report on a study, from its study.json and predictions.parquet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedilc.errors import ConfigError
from fedilc.evaluation.intervals import Interval
from fedilc.report.cells import p_text
from fedilc.report.html.calibration import calibration_charts
from fedilc.report.html.charts import Line, common_limits, curves, heat, intervals, legend
from fedilc.report.html.page import Part, command, facts, folded, grid, lines, note, table
from fedilc.report.study_files import FORMAT
from fedilc.report.table_formats import Cell, Column, TableData
from fedilc.studies.study.tasks import ALONE, POOLED
from fedilc.studies.study.verdict import NAMES

FILE = "study.json"
_CALLED = {ALONE: "site alone", POOLED: "pooled, if shared"}
Facts = Mapping[str, Any]


def study_part(folder: Path) -> Part:
    """Return the part on the study in a folder."""
    study = _read(folder)
    sections = [
        ("Mean over held-out sites", _means(study)),
        ("Each site that took no part", _sites(study)),
        *_differences(study),
        ("Curves", _curves(study)),
        *calibration_charts(folder, study),
        *_agreement(study),
        *([("Notes on the data", lines(study["notes"]))] if study["notes"] else []),
        ("Settings chosen on the training sites", _choices(study)),
        ("Settings and command", _settings(study)),
    ]
    return Part(f"{study['name']}: study", tuple(study["verdict"]), tuple(sections))


def _read(folder: Path) -> Facts:
    try:
        study = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if study["format"] == FORMAT:
            return dict(study)
        reason = f"its format is {study['format']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error)
    raise ConfigError(
        f"{folder / FILE} is damaged or of another version ({reason}); run the study again, which keeps the "
        "runs that are done"
    )


def methods_of(study: Facts) -> list[tuple[str, str, int]]:
    """Return each method, how it is called, and its colour."""
    return [(name, _CALLED.get(name, name), place) for place, name in enumerate(study["methods"])]


def _interval(found: Mapping[str, Any] | None) -> Interval:
    if found is None:
        return Interval(None, None, None)
    return Interval(found["value"], found["low"], found["high"])


def _rows(study: Facts, found: Facts, metric: str) -> list[tuple[str, int, Interval]]:
    """Return the methods' scores, for those that have been trained here."""
    return [
        (called, colour, _interval(found[name][metric]))
        for name, called, colour in methods_of(study)
        if name in found
    ]


def _means(study: Facts) -> str:
    metric = study["deciding_metric"]
    examples = sum(study["silos"][site]["examples"] for site in study["held_out"])
    about = facts(
        [
            ("held-out sites", len(study["held_out"])),
            ("examples there", f"{examples:,}"),
            ("methods", len(study["settings"]["algorithms"])),
            ("seeds", study["settings"]["seeds"]),
            ("decided by", NAMES[metric]),
        ]
    )
    rows = _rows(study, study["means"], metric)
    drawn = intervals(f"{NAMES[metric]}, mean over sites", rows, common_limits(row[2] for row in rows))
    note_ = note(
        "95 % bootstrap intervals over the examples of these sites; means over seeds. Site alone and pooled "
        "are the two ends of the scale, and no federated methods."
    )
    return about + drawn + note_ + folded("All scores", _score_table(study, "", study["means"]))


def _score_table(study: Facts, site: str, found: Facts) -> str:
    metrics = study["metrics"]
    rows = tuple(
        (Cell(called), *(Cell(str(_interval(found[name][metric]))) for metric in metrics))
        for name, called, _ in methods_of(study)
        if name in found
    )
    title = f"All scores at {site}" if site else "All scores, mean over sites"
    columns = (Column("method", words=True), *(Column(NAMES[metric]) for metric in metrics))
    return table(TableData("scores", study["name"], title, columns, rows))


def _sites(study: Facts) -> str:
    metric = study["deciding_metric"]
    by_site = {site: _rows(study, found, metric) for site, found in study["sites"].items()}
    limits = common_limits(row[2] for rows in by_site.values() for row in rows)
    panels = (intervals(f"{site} ({_size(study, site)})", rows, limits) for site, rows in by_site.items())
    told = note(f"{NAMES[metric]}, with 95 % bootstrap intervals over each site's examples.")
    drawn = told + grid(panels, "wide")
    tables = "".join(_score_table(study, site, found) for site, found in study["sites"].items())
    return drawn + folded("All scores at each site", tables)


def _size(study: Facts, site: str) -> str:
    silo = study["silos"][site]
    positive = silo.get("classes", {}).get("1", 0) if study["loss"] == "binary" else None
    share = "" if positive is None else f", {positive / silo['examples']:.0%} positive"
    return f"{silo['examples']:,} examples{share}"


def _differences(study: Facts) -> list[tuple[str, str]]:
    """Return the comparison with the reference, by site and over all scores."""
    metric = study["deciding_metric"]
    compared = study["comparisons"].get(metric)
    if not compared:
        return []
    colours = {name: colour for name, _, colour in methods_of(study)}
    sites = {
        method: [("all sites", _interval(found["difference"]))]
        + [(site, _interval(one)) for site, one in found["by_site"].items()]
        for method, found in compared.items()
    }
    limits = common_limits(one for rows in sites.values() for _, one in rows)
    reference = study["reference"]
    panels = (
        intervals(
            f"{method} minus {reference}",
            [(site, colours[method], one) for site, one in rows],
            limits,
            "site",
            "{:+.3f}",
        )
        for method, rows in sites.items()
    )
    higher = "right" if metric in study["higher_is_better"] else "left"
    told = note(
        f"Differences of {NAMES[metric]}. {higher.capitalize()} of the dashed line, the method is better "
        f"than {reference}."
    )
    return [(f"Compared with {reference}", grid(panels, "wide") + told + _tests(study))]


def _tests(study: Facts) -> str:
    rows = []
    for metric, compared in study["comparisons"].items():
        for method, found in compared.items():
            smallest = "-" if found["detectable"] is None else f"{found['detectable']:.3f}"
            rows.append(
                (
                    Cell(NAMES[metric]),
                    Cell(method),
                    Cell(_signed(_interval(found["difference"]))),
                    Cell(p_text(found["t_p"])),
                    Cell(p_text(found["corrected_p"])),
                    Cell(smallest),
                    Cell(found["verdict"]),
                )
            )
    names = ("difference [95 %]", "p over sites", "p corrected", "detectable")
    columns = (
        Column("score", words=True),
        Column("method", words=True),
        *map(Column, names),
        Column("verdict", words=True),
    )
    notes = (
        "p: paired t-test over sites, and after Holm's correction for the methods of one score; detectable: "
        "the smallest mean difference that the test over sites finds with 80 % power.",
    )
    title = f"Tests over sites against {study['reference']}"
    return table(TableData("tests", study["name"], title, columns, tuple(rows), notes, grouped=True))


def _signed(found: Interval) -> str:
    ends = [end for end in (found.value, found.low, found.high) if end is not None]
    shown = [f"{end:+.3f}" for end in ends]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]" if len(shown) == 3 else "".join(shown[:1]) or "-"


def _curves(study: Facts) -> str:
    """Return the losses by which rounds were chosen: all methods' means, and each method with its range."""
    drawn = []
    for name, called, colour in methods_of(study):
        found = [methods[name]["curve"] for methods in study["choices"].values() if name in methods]
        line = band(called, colour, [{int(r): loss for r, loss in one.items()} for one in found])
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


def band(label: str, colour: int, series: Sequence[Mapping[int, float | None]]) -> Line | None:
    """Return the mean of several curves over the rounds that all have, and their range; None without any."""
    known = [{x: y for x, y in one.items() if y is not None} for one in series]
    rounds = sorted(set.intersection(*map(set, known))) if known else []
    if not rounds:
        return None
    values = np.array([[one[number] for number in rounds] for one in known], float)
    limits = [values.min(0).tolist(), values.max(0).tolist()] if len(known) > 1 else []
    return Line(label, colour, rounds, values.mean(0).tolist(), *limits)


def _agreement(study: Facts) -> list[tuple[str, str]]:
    """Return how far the silos' gradients agree by layer and round, if the study kept it."""
    found = study.get("agreement") or {}
    drawn = [agreement_chart(method, by_round) for method, by_round in found.items()]
    return [agreement_section(drawn)] if drawn else []


def agreement_chart(title: str, by_round: Mapping[int, Mapping[str, float]]) -> str:
    """Return the agreement of the silos' signs by layer and round."""
    rounds = sorted(by_round, key=int)
    layers = list(by_round[rounds[0]])
    rows = {layer: [by_round[number].get(layer, 0.0) for number in rounds] for layer in layers}
    return heat(title, "round", [int(number) for number in rounds], rows)


def agreement_section(charts: Sequence[str]) -> tuple[str, str]:
    """Return the section of these charts."""
    told = note(
        "How far the signs of the silos' gradients agree: the stronger the colour, the more (1: all alike). "
        "The number is that of the last round. Methods that only average do not measure it."
    )
    return "Agreement by layer and round", told + grid(charts)


def _choices(study: Facts) -> str:
    rows = []
    for site, methods in study["choices"].items():
        for method, choice in methods.items():
            given = ", ".join(f"{key} {value:g}" for key, value in choice["options"].items())
            cells = Cell(_CALLED.get(method, method)), Cell(str(choice["round"])), Cell(given)
            rows.append((Cell(site), *cells, Cell(f"{choice['loss']:.3f}")))
    headings = (Column("site", words=True), Column("method", words=True), Column("round"))
    columns = (*headings, Column("settings", words=True), Column("loss"))
    how = {
        "silo": "Chosen by the loss at training sites that were left out in turn (nested), ",
        "validation": "Chosen by the loss on validation examples of the training sites, ",
    }
    told = how[study["choose_by"]] + "never by the held-out site."
    title = "Settings for each held-out site"
    made = table(TableData("choices", study["name"], title, columns, tuple(rows), (), grouped=True))
    return note(told) + folded(f"{len(rows)} choices", made)


def _settings(study: Facts) -> str:
    rows = tuple((Cell(key), Cell(setting(value))) for key, value in study["settings"].items())
    columns = (Column("setting", words=True), Column("value", words=True))
    made = table(TableData("settings", study["name"], "Settings of the study", columns, rows))
    line = study.get("command")
    return (command(line) if line else "") + made


def setting(value: object) -> str:
    """Return the value of a setting in words."""
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value)) or "none"
    return "none" if value in (None, {}) else f"{value:g}" if isinstance(value, float) else str(value)
