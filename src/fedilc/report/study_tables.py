"""The tables of a study, made from the content of its study.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedilc.algorithms.loss_registry import task_of
from fedilc.errors import listed
from fedilc.evaluation.intervals import CAUTION_MARK, NOT_ESTIMABLE, Interval
from fedilc.evaluation.next_site import MOST_WITH_PRIOR, PRIOR_SD, PRIOR_TAU
from fedilc.report.tables import NOTHING, Cell, Column, TableData, p_text, words
from fedilc.studies.study.comparators import ALONE, CHOSEN, NULL, kind_of
from fedilc.studies.study.verdict import CALIBRATION, NAMES

_MAX_SITES, _MAX_NAME = 4, 12  # columns of sites, and characters of their names, that fit in 80 characters
_SITE, _METHOD = words("site", "method")
_FOREST = 25  # characters of an interval that is drawn in a terminal
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
_CHOSEN = {
    "silo": "Chosen by the loss at training sites that were left out in turn (nested), never by the held-out "
    "site.",
    "validation": "Chosen by the loss on validation examples of the training sites, never by the held-out "
    "site.",
}

Study = Mapping[str, Any]


def study_tables(study: Study) -> list[TableData]:
    """Return all tables of a study: sites, mean scores, scores per site, comparisons, choices."""
    tables = [sites_table(study), *next_site_tables(study), means_table(study), scores_table(study)]
    return [*tables, *against_tables(study), *comparison_tables(study), choices_table(study)]


def _called(method: str) -> str:
    return "the chosen procedure" if method == CHOSEN else method


def headline(study: Study) -> str:
    """Return the method that answers the question; the reference in files of earlier versions."""
    return str(study.get("headline", study["reference"]))


def summary_tables(study: Study) -> list[TableData]:
    """Return the tables that a terminal shows: the deciding score by site, all scores, the comparison."""
    names = study["held_out"]
    many = len(names) > _MAX_SITES or max(map(len, names)) > _MAX_NAME
    sites = [] if many else [sites_table(study)]
    shown = (study["deciding_metric"], "log_loss")
    comparisons = comparison_tables(study, shown, brief=True)
    deciding = _deciding_table(study, down=many)
    against = against_tables(study, shown)
    return [*sites, deciding, *forest_table(study), *against, means_table(study, brief=True), *comparisons]


def interval(found: Mapping[str, Any] | None) -> Interval:
    """Return a score as study.json has it; one without values if there is none."""
    return Interval(*map((found or {}).get, ("value", "low", "high", "reason", "caution")))


def _deciding_table(study: Study, *, down: bool) -> TableData:
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
        f"For the {NAMES[study['deciding_metric']]} of {method}, tau is {found['tau']:.3f} on the scale of "
        f"the analysis{compared} and I² {found['i2']:.0%}. The sites' models share training sites, which all "
        "intervals but that by REML allow for; docs/study.md has their simulated coverage.",
    ]


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
    limits = (Cell(" to ".join(map(form.format, pair)), parts=tuple(map(_digits, pair))) for pair in ends)
    return found["sites"], score_cell(mean, form), *limits, _digits(found["tau"], 3), f"{found['i2']:.0%}"


def against_tables(study: Study, metrics: Sequence[str] | None = None) -> list[TableData]:
    """Return how the headline differs from the comparators and the reference in these scores, over sites."""
    method = headline(study)
    others = {NULL, study["reference"], *study["references"], *study.get("regressions", ())} - {method}
    rows = []
    for metric, found in study.get("against", {}).items():
        for other in study["methods"] if metrics is None or metric in metrics else ():
            one = found.get(other, {}) if other in others else {}
            if one.get("value") is not None:
                ends = (one["next_low"], one["next_high"]) if one["sites"] > MOST_WITH_PRIOR else (None, None)
                text = "-" if None in ends else " to ".join(map("{:+.3f}".format, ends))
                limits = Cell(text, parts=tuple(map(_digits, ends)))
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
        f"prediction interval, which {MOST_WITH_PRIOR} sites or fewer leave too wide to use.",
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
            label = f"{positives} ({positives / about['examples']:.0%})"
        else:
            label = f"{len(about['classes'])} classes"
        held = "held out" if site in study["held_out"] else "trained on"
        rows.append((site, about["examples"], label, held))
    heading = "positives" if task_of(study["loss"]) == "binary" else "label"
    columns = (_SITE, "examples", heading, *words(""))
    return TableData.of("sites", study["name"], "Sites", columns, rows)


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
                *(Cell(p_text(p), parts=(_digits(p),)) for p in p_values[brief:]),
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
            rows.append((site, method, choice["round"], given, f"{choice['loss']:.3f}", chosen))
    columns = (_SITE, _METHOD, "round", *words("settings"), "loss", *words("procedure"))
    title, notes = "Settings chosen on the training sites", (_CHOSEN[study["choose_by"]],)
    return TableData.of("choices", study["name"], title, columns, rows, notes, grouped=True)


def _hidden(widths: Sequence[int] | str | None) -> str:
    """Return a network in words.

    >>> _hidden([64, 32]), _hidden([]), _hidden(None)
    ('hidden 64-32', 'linear', 'cnn')
    """
    if widths is None or isinstance(widths, str):
        return widths or "cnn"
    return f"hidden {'-'.join(map(str, widths))}" if widths else "linear"


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
        plain = "".join(f", or {name} unless that is clearly lower" for name in study.get("regressions", ()))
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
    return Cell(text, parts=tuple(_digits(end) for end in (one.value, *ends)))


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


def _digits(value: float | None, digits: int = 6) -> str:
    return "" if value is None else f"{value:.{digits}g}"


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
