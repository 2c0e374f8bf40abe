"""The tables of a study: sites, the next site, comparisons and choices; `score_tables` has the scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedilc.algorithms.loss_registry import task_of
from fedilc.evaluation.intervals import Interval
from fedilc.evaluation.next_site import MOST_WITH_PRIOR, PRIOR_SD, PRIOR_TAU
from fedilc.report.score_tables import (
    Study,
    deciding_table,
    digits,
    headline,
    interval,
    means_table,
    score_cell,
    scores_table,
)
from fedilc.report.tables import Cell, Column, TableData, p_text, words
from fedilc.studies.study.comparators import CHOSEN, NULL
from fedilc.studies.study.verdict import NAMES

_MAX_SITES, _MAX_NAME = 4, 12  # columns of sites, and characters of their names, that fit in 80 characters
_SITE, _METHOD = words("site", "method")
_FOREST = 25  # characters of an interval that is drawn in a terminal
_CHOSEN = {
    "silo": "Chosen by the loss at training sites that were left out in turn (nested), never by the held-out "
    "site.",
    "validation": "Chosen by the loss on validation examples of the training sites, never by the held-out "
    "site.",
}


def study_tables(study: Study) -> list[TableData]:
    """Return all tables of a study: sites, mean scores, scores per site, comparisons, choices."""
    tables = [sites_table(study), *next_site_tables(study), means_table(study), scores_table(study)]
    return [*tables, *against_tables(study), *comparison_tables(study), choices_table(study)]


def _called(method: str) -> str:
    return "the chosen procedure" if method == CHOSEN else method


def summary_tables(study: Study) -> list[TableData]:
    """Return the tables that a terminal shows: the deciding score by site, all scores, the comparison."""
    names = study["held_out"]
    many = len(names) > _MAX_SITES or max(map(len, names)) > _MAX_NAME
    sites = [] if many else [sites_table(study)]
    shown = (study["deciding_metric"], "log_loss")
    comparisons = comparison_tables(study, shown, brief=True)
    deciding = deciding_table(study, down=many)
    against = against_tables(study, shown)
    return [*sites, deciding, *forest_table(study), *against, means_table(study, brief=True), *comparisons]


def next_site_rows(study: Study, method: str) -> list[tuple[str, Interval]]:
    """Return the rows of a forest plot: each site, the mean over sites like these, and the next site.

    Empty if too few sites have the deciding score.
    """
    metric = study["deciding_metric"]
    found = study["next_site"][method][metric]
    if found["low"] is None:
        return []
    scored = study["estimates"][method][metric]
    rows = [(site, interval(study["sites"][site][method][metric])) for site in scored]
    middle = found["mean"]
    rows.append(("mean of such sites", Interval(middle, found["mean_low"], found["mean_high"])))
    if found["prior_low"] is not None and found["headline"] != "empirical":
        rows.append(("next site, empirical prior", Interval(middle, found["prior_low"], found["prior_high"])))
    if found["headline"] != "Jeffreys":
        rows.append(
            ("next site, these sites alone", Interval(middle, found["jeffreys_low"], found["jeffreys_high"]))
        )
    rows.append(("next site, by REML", Interval(middle, found["reml_low"], found["reml_high"])))
    return [*rows, ("next site", Interval(middle, found["low"], found["high"]))]


def chance(study: Study) -> float | None:
    """Return the deciding score of predictions that know nothing, if that is the same for all data."""
    return 0.5 if study["deciding_metric"] == "auroc" else None


def forest_table(study: Study) -> list[TableData]:
    """Return the forest plot of the headline for a terminal; none if too few sites have the score."""
    metric, method = study["deciding_metric"], headline(study)
    rows = next_site_rows(study, method)
    if not rows:
        return []
    ends = [end for _, one in rows for end in (one.low, one.high, one.value) if end is not None]
    nothing = chance(study)
    ends += [] if nothing is None else [nothing]
    low, high = min(ends), max(ends)
    shown = [(label, _drawn(one, low, high, nothing), _interval_cell(one)) for label, one in rows]
    columns = (_SITE, *words(f"{low:.2f} to {high:.2f}"), NAMES[metric])
    title = f"{NAMES[metric]} of {_called(method)}: each site, and the next one"
    notes = [*next_site_notes(study, method), *([] if nothing is None else [f"┊: chance ({nothing:g})."])]
    return [TableData.of("forest", study["name"], title, columns, shown, notes)]


def _interval_cell(one: Interval) -> Cell:
    return score_cell({"value": one.value, "low": one.low, "high": one.high, "caution": one.caution})


def _drawn(one: Interval, low: float, high: float, line: float | None = None) -> str:
    """Return an interval as characters, behind it a line.

    >>> _drawn(Interval(0.5, 0.25, 0.75), 0.0, 1.0, line=0.125)
    '   ┊  ├─────●─────┤      '
    """

    def place(value: float) -> int:
        return round((value - low) / ((high - low) or 1.0) * (_FOREST - 1))

    cells = [" "] * _FOREST
    if line is not None:
        cells[place(line)] = "┊"
    if one.low is not None and one.high is not None:
        first, last = place(one.low), place(one.high)
        cells[first : last + 1] = "─" * (last - first + 1)
        cells[first], cells[last] = "├", "┤"
    if one.value is not None:
        cells[place(one.value)] = "●"
    return "".join(cells)


def next_site_notes(study: Study, method: str) -> list[str]:
    """Say how the interval for the next site was computed, and what it takes for granted."""
    found = study["next_site"][method][study["deciding_metric"]]
    how = {
        "empirical": "next site: 95 % prediction interval, with an empirical prior for how far sites differ "
        "(469 clinical models, doi 10.1002/sim.70011), because few sites say little about it; these sites "
        "alone: the same with Jeffreys' prior.",
        "Jeffreys": "next site: 95 % prediction interval, integrated over how far sites may differ "
        "(Jeffreys' prior).",
    }
    compared = ""
    if found["headline"] == "empirical":
        near = found["tau"] * found["mean"] * (1 - found["mean"])
        compared = (
            f" (about {near:.3f} on that of the AUROC, for which the prior has {PRIOR_TAU}, SD {PRIOR_SD})"
        )
    return [
        how[found["headline"]],
        "by REML: the usual interval, mean ± t(k-2) √(tau² + se²), with Hartung-Knapp; if sites are few, it "
        "misses more than 5 % of next sites in most simulated settings.",
        "mean of such sites: weighted by random effects; means in other tables count all sites equally.",
        f"For the {NAMES[study['deciding_metric']]} of {method}, tau is {found['tau']:.3f} on the scale of "
        f"the analysis{compared} and I² {found['i2']:.0%}. The sites' models share training sites, which all "
        "intervals but that by REML allow for.",
        *([_COVERAGE] if study["deciding_metric"] == "auroc" else []),
    ]


# Held by a test to results/coverage/next-site-overlap.csv, in the rows with tau "prior".
_COVERAGE = (
    "In simulated studies of the AUROC, with tau drawn from the empirical prior, the interval of 95 % held "
    "92 to 96 % of next sites with 3 or 4 sites, 95 to 99 % with 8, and 95 to 97 % with 20 "
    "(docs/explanation/next-site.md)."
)


def next_site_tables(study: Study) -> list[TableData]:
    """Return what to expect at the next site: each method's scores, and differences from the reference."""
    rows = []
    for method, metrics in study["next_site"].items():
        for metric, found in metrics.items():
            if found["low"] is not None:
                rows.append((method, NAMES[metric], *_next_cells(found, "{:.3f}"), found["headline"]))
    for metric, methods in study["next_site_differences"].items():
        for method, found in methods.items():
            if found["low"] is not None:
                name = f"{method} minus {study['reference']}"
                rows.append((name, NAMES[metric], *_next_cells(found, "{:+.3f}"), found["headline"]))
    if not rows:
        return []
    columns = (
        *words("method", "score"),
        "sites",
        Column("mean [95 %]", ("mean", "mean_low", "mean_high")),
        Column("next site", ("next_low", "next_high")),
        Column("by REML", ("reml_low", "reml_high")),
        "tau",
        "I²",
        *words("prior"),
    )
    notes = next_site_notes(study, headline(study)) if forest_table(study) else []
    notes += [
        "prior: 'empirical' rows use how far sites differed for other clinical models, 'Jeffreys' rows these "
        "sites alone.",
        "Intervals of mean differences in this table are not corrected for the number of methods; those of "
        "'Compared with' are.",
    ]
    title = "What to expect at the next site"
    return [TableData.of("next-site", study["name"], title, columns, rows, notes, grouped=True)]


def _next_cells(found: Mapping[str, Any], form: str) -> tuple[object, ...]:
    mean = {"value": found["mean"], "low": found["mean_low"], "high": found["mean_high"]}
    ends = [(found[f"{kind}low"], found[f"{kind}high"]) for kind in ("", "reml_")]
    limits = (Cell(" to ".join(map(form.format, pair)), parts=tuple(map(digits, pair))) for pair in ends)
    return found["sites"], score_cell(mean, form), *limits, digits(found["tau"], 3), f"{found['i2']:.0%}"


def against_tables(study: Study, metrics: Sequence[str] | None = None) -> list[TableData]:
    """Return how the headline differs from the comparators and the reference in these scores, over sites."""
    method = headline(study)
    others = {NULL, study["reference"], *study["references"], *study.get("regressions", ())} - {method}
    rows = []
    for metric, found in study.get("against", {}).items():
        for other in study["methods"] if metrics is None or metric in metrics else ():
            one = found.get(other, {}) if other in others else {}
            if one.get("value") is not None:
                told = one["sites"] > MOST_WITH_PRIOR and one["low"] is not None
                ends = (one["next_low"], one["next_high"]) if told else (None, None)
                text = "-" if None in ends else " to ".join(map("{:+.3f}".format, ends))
                limits = Cell(text, parts=tuple(map(digits, ends)))
                rows.append((NAMES[metric], other, one["sites"], score_cell(one, "{:+.3f}"), limits))
    if not rows:
        return []
    columns = (
        *words("score", "compared with"),
        "sites",
        Column("mean difference [95 %]", ("difference", "low", "high")),
        Column("next site", ("next_low", "next_high")),
    )
    notes = (
        f"{method} minus the other: above 0, {method} has the higher score; a loss is better if it is lower.",
        "Mean over sites with its 95 % interval, corrected for shared training sites; next site: 95 % "
        f"prediction interval, for more than {MOST_WITH_PRIOR} sites, and if {method} is another model than "
        "the other at each of them.",
        "No interval: fewer than three sites have the score, or the difference is the same at all of them.",
    )
    title = f"{_called(method)} against simpler models and other data".capitalize()
    return [TableData.of("against", study["name"], title, columns, rows, notes, grouped=True)]


def sites_table(study: Study) -> TableData:
    """Return the sites: their sizes, their labels, and whether they are held out."""
    rows = []
    for site, about in study["silos"].items():
        if "classes" not in about:
            label = f"mean {about['mean']:.3g}, deviation {about['deviation']:.3g}"
        elif task_of(study["loss"]) == "binary":
            positives = about["classes"].get("1", 0)
            label = "not told" if positives is None else f"{positives} ({positives / about['examples']:.0%})"
        else:
            label = f"{len(about['classes'])} classes"
        held = "held out" if site in study["held_out"] else "trained on"
        rows.append((site, about["examples"], label, held))
    heading = "positives" if task_of(study["loss"]) == "binary" else "label"
    columns = (_SITE, "examples", heading, *words(""))
    return TableData.of("sites", study["name"], "Sites", columns, rows)


def comparison_tables(
    study: Study, metrics: Iterable[str] | None = None, brief: bool = False
) -> list[TableData]:
    """Return the table of methods compared with the reference in these scores; none if it would be empty.

    `brief` leaves out p before correction. A study.json of before p was corrected for shared training sites
    has no interval over sites, and its p-values, which were too small, are not shown.
    """
    rows = []
    for metric, methods in study["comparisons"].items():
        for method, found in methods.items() if metrics is None or metric in metrics else ():
            over_sites = found.get("over_sites") or {"value": found["difference"]["value"]}
            p_values = [found.get("p"), found["corrected_p"] if "over_sites" in found else None]
            cells = (
                score_cell(over_sites, "{:+.3f}"),
                *(Cell(p_text(p), parts=(digits(p),)) for p in p_values[brief:]),
            )
            verdict = found["verdict"] if "over_sites" in found else "not tested"
            rows.append((NAMES[metric], method, *cells, verdict))
    if not rows:
        return []
    columns = (
        *words("score", "method"),
        Column("difference [95 %]", ("difference", "low", "high")),
        *(["p (Holm)"] if brief else ["p", "p (Holm)"]),
        *words("verdict"),
    )
    notes = (
        f"Method minus {study['reference']}, mean over sites; intervals over sites, which hold for all "
        "methods of a score together with 95 %.",
        "Intervals and p: t-test over sites, with the variance that Nadeau and Bengio give for models that "
        "share training sites; p is corrected by Holm's method for the methods.",
        f"Only {NAMES[study['deciding_metric']]}, which decides, is tested.",
    )
    title = f"Compared with {study['reference']}"
    return [TableData.of("comparisons", study["name"], title, columns, rows, notes, grouped=True)]


def choices_table(study: Study) -> TableData:
    """Return the settings that each method chose for each held-out site."""
    kept = (
        *("learning_rate", "local_learning_rate", "penalty_weight", "environment_size"),
        *("weight_decay", "max_depth"),
    )
    rows = []
    for site, methods in study["choices"].items():
        for method, choice in methods.items():
            options = choice["options"]
            given = ", ".join(
                [
                    *(f"{key} {options[key]:g}" for key in kept if options.get(key)),
                    *([_hidden(options["hidden"])] if "hidden" in options else []),
                    *([f"average {options['average']}"] if options.get("average", "none") != "none" else []),
                    *(["scaled robustly"] if options.get("scaling") == "robust" else []),
                ]
            )
            chosen = "chosen" if study.get("chosen", {}).get(site) == method else ""
            number = choice["round"] if len(choice["curve"]) > 1 else "-"  # regressions stop by themselves
            rows.append((site, method, number, given, f"{choice['loss']:.3f}", chosen))
    columns = (_SITE, _METHOD, "round", *words("settings"), "loss", *words("procedure"))
    title, notes = "Settings chosen on the training sites", [_CHOSEN[study["choose_by"]]]
    if rows_used := study.get("choosing_rows"):
        notes.append(f"Chosen on at most {rows_used:,} rows of each site; final models have all rows.")
    return TableData.of("choices", study["name"], title, columns, rows, notes, grouped=True)


def _hidden(widths: Sequence[int] | str | None) -> str:
    """Return a network in words.

    >>> _hidden([64, 32]), _hidden([]), _hidden(None)
    ('hidden 64-32', 'linear', 'cnn')
    """
    if widths is None or isinstance(widths, str):
        return widths or "cnn"
    return f"hidden {'-'.join(map(str, widths))}" if widths else "linear"
