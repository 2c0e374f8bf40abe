"""The tables of scores at held-out sites, made from the content of a study's study.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedilc.errors import listed
from fedilc.evaluation.intervals import CAUTION_MARK, NOT_ESTIMABLE, Interval
from fedilc.report.tables import NOTHING, Cell, Column, TableData, words
from fedilc.studies.study.comparators import ALONE, CHOSEN, NULL, kind_of
from fedilc.studies.study.result import ALL_SITES
from fedilc.studies.study.verdict import CALIBRATION, NAMES

_SITE, _METHOD = words("site", "method")
_SHORT = {
    "log_loss_refitted": "refit",
    "brier": "Brier",
    "calibration_slope": "slope",
    "calibration_intercept": "intercept",
}
_KINDS = {
    NULL: "the same prediction for every example, from the training sites' labels alone",
    "alone": "trained on the site's own examples, cross-validated",
    "pooled": "trained on the other sites' examples together, as if sharing were allowed",
}
_DOWN = 6  # columns of methods that fit beside the names of many sites

Study = Mapping[str, Any]


def headline(study: Study) -> str:
    """Return the method that answers the question; the reference in files of earlier versions."""
    return str(study.get("headline", study["reference"]))


def interval(found: Mapping[str, Any] | None) -> Interval:
    """Return a score as study.json has it; one without values if there is none."""
    return Interval(*map((found or {}).get, ("value", "low", "high", "reason", "caution")))


def deciding_table(study: Study, *, down: bool) -> TableData:
    """Return the deciding score: a column per held-out site, or a row per site if there are many (`down`)."""
    metric, methods, sites = study["deciding_metric"], study["methods"], study["sites"]
    found = {
        site: {method: of[method][metric] if method in of else None for method in methods}
        for site, of in sites.items()
    }
    rows: list[tuple[object, ...]] = []
    if down:
        first = [headline(study), NULL, study["reference"], *study.get("federated", ())[-1:]]
        kept = [name for name in dict.fromkeys([*first, *study["references"], *methods]) if name in methods]
        shown = sorted(kept[:_DOWN], key=methods.index)
        columns: tuple[object, ...] = (_SITE, "n", *shown)
        for site, of in found.items():
            scores = (score_cell(of[method], limits=False) for method in shown)
            rows.append((site, study["silos"][site]["examples"], *scores))
        rest = "Other methods and intervals" if len(shown) < len(methods) else "Intervals"
        notes = (*_ends(study, shown), *few_notes(study, [metric]), f"{rest} are in tables/by-site.csv.")
    else:
        columns = (_METHOD, *sites, "mean")
        for method in methods:
            scores = (_short_cell(of[method]) for of in found.values())
            rows.append((method, *scores, _short_cell(study["means"][method][metric])))
        few = few_notes(study, [metric])
        notes = ("95 % intervals over the examples of a site.", *_ends(study), *few)
    title = f"{NAMES[metric]} at each held-out site"
    return TableData.of("score", study["name"], title, columns, rows, notes)


def scores_table(study: Study) -> TableData:
    """Return each method's scores at each held-out site."""
    rows = [
        (f"{site} ({study['silos'][site]['examples']} examples)", *row)
        for site, found in study["sites"].items()
        for row in _score_rows(study, found)
    ]
    note = "Means over seeds; 95 % intervals over the site's examples."
    notes = (note, *_ends(study), *few_notes(study, study["metrics"]))
    columns = (_SITE, _METHOD, *map(score_column, study["metrics"]))
    title = "At each held-out site"
    return TableData.of("by-site", study["name"], title, columns, rows, notes, grouped=True)


def means_table(study: Study, *, brief: bool = False) -> TableData:
    """Return each method's mean scores over held-out sites; `brief` leaves out intervals."""
    metrics = study["metrics"]
    rows = _score_rows(study, study["means"], limits=not brief)
    if brief:
        titles = (_SHORT.get(metric, NAMES[metric]) for metric in metrics)
        ideal = [
            "refit: log loss with the intercept refitted at the site. Slope and intercept are of "
            "calibration; 1 and 0 are ideal."
        ] * (CALIBRATION[0] in metrics)
        title = "Means over the held-out sites"
        notes = [*_hindsight(study), *ideal, *_fewer_sites(study)]
        return TableData.of("all-means", study["name"], title, (_METHOD, *titles), rows, notes)
    title = "At held-out sites: mean over sites"
    note = "Means over held-out sites and seeds; 95 % intervals over the examples of these sites."
    columns = (_METHOD, *map(score_column, metrics))
    notes = [note, *_hindsight(study), *_fewer_sites(study), *_ends(study)]
    return TableData.of("means", study["name"], title, columns, rows, notes)


def _score_rows(study: Study, found: Mapping[str, Any], limits: bool = True) -> Sequence[tuple[Cell, ...]]:
    """Return a row per method; of each score, the best algorithm is bold. References do not compete."""
    metrics, algorithms = study["metrics"], study.get("federated", study["settings"]["algorithms"])
    cells = {
        metric: {method: score_cell(scores[metric], limits=limits) for method, scores in found.items()}
        for metric in metrics
    }
    for metric, column in cells.items():
        values = {name: float(column[name].parts[0]) for name in algorithms if column[name].parts}
        if len(values) > 1 and metric not in CALIBRATION:
            best = (max if metric in study["higher_is_better"] else min)(values, key=values.__getitem__)
            column[best] = replace(column[best], bold=True)
    return [(Cell(method), *(cells[metric][method] for metric in metrics)) for method in found]


def by_place(study: Study, key: str) -> dict[str, Any]:
    """Return a part of the assessment of all held-out sites together, if there is one, and of each."""
    sites = study.get(key, {})
    sites = sites.get("sites", {}) if key == "net_benefit" else sites
    together = study.get("together", {}).get(key)
    return {**({ALL_SITES: together} if together else {}), **sites}


def score_column(metric: str) -> Column:
    """Return the column of a score, which CSV splits into value and limits."""
    return Column(NAMES[metric], (metric, f"{metric}_low", f"{metric}_high"))


def score_cell(found: Mapping[str, Any] | None, form: str = "{:.3f}", limits: bool = True) -> Cell:
    """Return a score as study.json has it, with its limits, and its parts for CSV."""
    one = interval(found)
    if one.value is None:
        return NOTHING if one.reason is None else Cell(NOT_ESTIMABLE)
    ends = (one.low, one.high) if limits else (None, None)
    shown = [form.format(end) for end in (one.value, *ends) if end is not None]
    shown[0] += CAUTION_MARK * (one.caution is not None)
    text = f"{shown[0]} [{shown[1]},{shown[2]}]" if len(shown) == 3 else shown[0]
    return Cell(text, parts=tuple(digits(end) for end in (one.value, *ends)))


def _short_cell(found: Mapping[str, Any] | None) -> Cell:
    """Return a score with limits of two digits, which is what fits in a terminal."""
    one = interval(found)
    if one.value is None or one.low is None or one.high is None:
        return score_cell(found)
    low, high = (
        (f"{end:.2f}" if abs(end) < 10 else f"{end:.3g}").replace("0.", ".", abs(end) < 1)
        for end in (one.low, one.high)
    )
    return Cell(f"{one.value:.3f}{CAUTION_MARK * (one.caution is not None)} [{low},{high}]")


def digits(value: float | None, count: int = 6) -> str:
    """Return a number with so many significant digits; nothing if there is none."""
    return "" if value is None else f"{value:.{count}g}"


def few_notes(study: Study, metrics: Sequence[str]) -> list[str]:
    """Say which of these scores are not estimable at which held-out sites, which need caution, and why."""
    notes = []
    for key, told in (("reason", "Not estimable"), ("caution", f"{CAUTION_MARK} Caution")):
        sites: dict[tuple[str, ...], list[str]] = {}
        for site in study["held_out"]:
            why: dict[str, list[str]] = {}
            for metric in metrics:
                found = [of[metric].get(key) for of in study["sites"][site].values()]
                if any(found):
                    why.setdefault(next(filter(None, found)), []).append(metric)
            for reason, names in why.items():
                sites.setdefault(tuple(names), []).append(f"{site} ({reason})")
        for scores, where in sites.items():
            notes.append(f"{told}: {listed([NAMES[name] for name in scores], 4)} at {listed(where, 5)}.")
    if not study["settings"]["references"]:
        return notes
    small = [site for site in study["held_out"] if ALONE not in study["sites"][site]]
    if small:
        notes.append(f"Too few examples of a class for a site's own model (site alone): {listed(small, 5)}.")
    return notes


def _fewer_sites(study: Study) -> list[str]:
    """Say which means are not over all held-out sites, because a score is not estimable at some."""
    every = len(study["held_out"])
    counts: dict[int, list[str]] = {}
    for metric in study["metrics"]:
        count = study["means"][study["reference"]][metric].get("sites", every)
        if count < every:
            counts.setdefault(count, []).append(NAMES[metric])
    return [
        f"Means over {count} of {every} sites, those that have the score: {listed(names, 4)}."
        for count, names in counts.items()
    ]


def _ends(study: Study, methods: Sequence[str] | None = None) -> list[str]:
    """Say what the chosen procedure is, and which methods are not federated."""
    found = []
    if study.get("chosen"):
        by_method: dict[str, list[str]] = {}
        for site, method in study["chosen"].items():
            by_method.setdefault(method, []).append(site)
        which = "; ".join(f"{method} for {listed(sites, 5)}" for method, sites in by_method.items())
        plain = "".join(
            f" if that loss is clearly lower than {name}'s, otherwise {name}"
            for name in study.get("regressions", ())
        )
        found.append(
            f"{CHOSEN}: for each site, the federated method of lowest loss at the training sites{plain} "
            f"({which})."
        )
    for kind, what in _KINDS.items():
        names = [name for name in methods or study["methods"] if kind_of(name) == kind]
        if names:
            found.append(f"{', '.join(names)}: {what}; not federated.")
    return found


def _hindsight(study: Study) -> list[str]:
    """Say that the best of many methods is known only afterwards."""
    if not study.get("chosen"):
        return []
    return [
        f"{CHOSEN} is the answer: for each site, its method was chosen without that site. Which other is "
        "best here is exploration: the best of several looks better than it is."
    ]
