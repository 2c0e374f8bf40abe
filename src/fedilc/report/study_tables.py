"""The tables and files of a study."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedilc.algorithms.loss_name import has_classes
from fedilc.evaluation.intervals import Interval
from fedilc.evaluation.scores import HIGHER_IS_BETTER
from fedilc.report.cells import NOTHING, p_text
from fedilc.report.table_formats import Cell, Column, TableData
from fedilc.studies.study.run import StudyResult
from fedilc.studies.study.tasks import ALONE, POOLED
from fedilc.studies.study.verdict import NAMES, deciding_metric

FORMAT = 1
_MOST_SITES, _LONGEST = 4, 12  # columns of sites, and characters of their names, that fit in 80 characters
_CALIBRATION = ("calibration_slope", "calibration_intercept")


def study_tables(result: StudyResult) -> list[TableData]:
    """Return the tables of a study: sites, scores per site and mean, comparisons, choices."""
    return [
        _sites(result),
        _means(result),
        _by_site(result),
        *_comparisons(result, compared(result)),
        _choices(result),
    ]


def summary_tables(result: StudyResult) -> list[TableData]:
    """Return the tables that a terminal shows: the deciding score by site, all scores, the comparison."""
    metric = deciding_metric(result)
    shown = [name for name in compared(result) if name in (metric, "log_loss")]
    names = result.plan.held_out
    wide = len(names) > _MOST_SITES or max(map(len, names)) > _LONGEST
    by_site = [_sites_down(result, metric)] if wide else [_sites(result), _score_by_site(result, metric)]
    return [*by_site, _all_means(result), *_comparisons(result, shown, brief=True)]


def _sites_down(result: StudyResult, metric: str) -> TableData:
    """Return one score of many sites: a row per held-out site, a column per method."""
    methods = _methods(result)
    rows = []
    for site in result.scores:
        found = [result.interval(site, method, metric).value for method in methods]
        cells = (_interval_cell(Interval(value, None, None)) for value in found)
        rows.append((Cell(site), Cell(str(len(result.plan.data.labels(site)))), *cells))
    columns = (Column("site", words=True), Column("n"), *map(Column, methods))
    notes = (*ends(result), *undefined(result), "Intervals are in tables/by-site.csv.")
    title = f"{NAMES[metric]} at each site that took no part"
    return TableData("score", result.plan.data.name, title, columns, tuple(rows), notes)


def _score_by_site(result: StudyResult, metric: str) -> TableData:
    """Return one score: a row per method, a column per held-out site."""
    methods = _methods(result)
    rows = [
        (
            Cell(method),
            *(_brief_cell(result.interval(site, method, metric)) for site in result.scores),
            _brief_cell(result.mean(method, metric)),
        )
        for method in methods
    ]
    columns = (Column("method", words=True), *map(Column, result.scores), Column("mean"))
    name = NAMES[metric]
    notes = ("95 % bootstrap intervals over the examples.", *ends(result), *undefined(result))
    title = f"{name} at each site that took no part"
    return TableData("score", result.plan.data.name, title, columns, tuple(rows), notes)


def _all_means(result: StudyResult) -> TableData:
    """Return all scores as means over sites, without intervals."""
    rows = []
    for method in _methods(result):
        found = [result.mean(method, metric) for metric in result.metrics]
        cells = (_interval_cell(Interval(one.value, None, None)) for one in found)
        rows.append((Cell(method), *cells))
    titles = [NAMES[metric].removeprefix("calibration ") for metric in result.metrics]
    columns = (Column("method", words=True), *map(Column, titles))
    marked = _bold_best(result, rows, len(result.plan.settings.algorithms))
    title = "Means over the sites that took no part"
    binary = "calibration_slope" in result.metrics
    notes = ("Slope and intercept are of calibration; 1 and 0 are ideal.",) if binary else ()
    return TableData("all-means", result.plan.data.name, title, columns, marked, notes)


def _sites(result: StudyResult) -> TableData:
    data = result.plan.data
    rows = []
    for site in data.silos:
        y = data.labels(site)
        if not has_classes(data.loss):
            about = f"mean {np.mean(y):.3g}, deviation {np.std(y):.3g}"
        elif data.loss == "binary":
            about = f"{int(np.sum(y))} ({np.mean(y):.0%})"
        else:
            about = f"{len(np.unique(y))} classes"
        held = "held out" if site in result.plan.held_out else "trained on"
        rows.append((Cell(site), Cell(str(len(y))), Cell(about), Cell(held)))
    heading = "positives" if data.loss == "binary" else "label"
    columns = (Column("site", words=True), Column("examples"), Column(heading), Column("", words=True))
    return TableData("sites", data.name, "Sites", columns, tuple(rows))


def _means(result: StudyResult) -> TableData:
    """Return each method's mean over held-out sites."""
    rows = []
    for method in _methods(result):
        cells = [_interval_cell(result.mean(method, metric)) for metric in result.metrics]
        rows.append((Cell(method), *cells))
    note = "Means over held-out sites and seeds; 95 % bootstrap intervals over the examples of these sites."
    return TableData(
        "means",
        result.plan.data.name,
        "At sites that took no part: mean over sites",
        (Column("method", words=True), *(_score_column(metric) for metric in result.metrics)),
        _bold_best(result, rows, len(result.plan.settings.algorithms)),
        (note, *ends(result)),
    )


def _by_site(result: StudyResult) -> TableData:
    """Return each method's scores at each held-out site."""
    rows: list[tuple[Cell, ...]] = []
    for site, methods in result.scores.items():
        part = []
        for method in methods:
            cells = [_interval_cell(result.interval(site, method, metric)) for metric in result.metrics]
            part.append((Cell(method), *cells))
        marked = _bold_best(result, part, len(result.plan.settings.algorithms))
        size = len(result.plan.data.labels(site))
        rows += [(Cell(f"{site} ({size} examples)"), *row) for row in marked]
    headings = (Column("site", words=True), Column("method", words=True))
    note = "Means over seeds; 95 % bootstrap intervals over the site's examples."
    return TableData(
        "by-site",
        result.plan.data.name,
        "At each site that took no part",
        (*headings, *(_score_column(metric) for metric in result.metrics)),
        tuple(rows),
        (note, *ends(result), *undefined(result)),
        grouped=True,
    )


def _comparisons(result: StudyResult, metrics: Sequence[str], brief: bool = False) -> list[TableData]:
    """Return the methods compared with the reference; `brief` leaves out p before correction."""
    rows: list[tuple[Cell, ...]] = []
    for metric in metrics:
        for method, found in result.comparisons(metric).items():
            rows.append(
                (
                    Cell(NAMES[metric]),
                    Cell(method),
                    _interval_cell(found.difference, signed=True),
                    *([] if brief else [Cell(p_text(found.t_p), parts=(_digits(found.t_p),))]),
                    Cell(p_text(found.corrected_p), parts=(_digits(found.corrected_p),)),
                    Cell(_digits(found.detectable, 3) or "-"),
                    Cell(found.verdict),
                )
            )
    if not rows:
        return []
    columns = (
        Column("score", words=True),
        Column("method", words=True),
        Column("difference [95 %]", ("difference", "low", "high")),
        *([] if brief else [Column("p over sites")]),
        Column("p (Holm)" if brief else "p corrected"),
        Column("detectable"),
        Column("", words=True),
    )
    notes = (
        f"Method minus {result.plan.reference}, mean over sites; interval over the examples of these sites.",
        "p: paired t-test over sites, corrected by Holm's method for the methods of one score.",
        "detectable: the smallest mean difference that the test over sites finds with 80 % power.",
    )
    title = f"Compared with {result.plan.reference}"
    return [TableData("comparisons", result.plan.data.name, title, columns, tuple(rows), notes, grouped=True)]


def _choices(result: StudyResult) -> TableData:
    """Return the settings that each method chose for each held-out site."""
    rows = []
    for site, methods in result.choices.items():
        for method, choice in methods.items():
            kept = ("learning_rate", "local_learning_rate", "penalty_weight", "environment_size")
            given = ", ".join(f"{key} {choice.options[key]:g}" for key in kept if key in choice.options)
            cells = (
                Cell(site),
                Cell(method),
                Cell(str(choice.round)),
                Cell(given),
                Cell(f"{choice.loss:.3f}"),
            )
            rows.append(cells)
    how = {
        "silo": "Chosen by the loss at training sites that were left out in turn (nested), ",
        "validation": "Chosen by the loss on validation examples of the training sites, ",
    }
    note = how[result.plan.choose_by] + "never by the held-out site."
    headings = (Column("site", words=True), Column("method", words=True), Column("round"))
    return TableData(
        "choices",
        result.plan.data.name,
        "Settings chosen on the training sites",
        (*headings, Column("settings", words=True), Column("loss")),
        tuple(rows),
        (note,),
        grouped=True,
    )


def _methods(result: StudyResult) -> list[str]:
    return [*result.plan.settings.algorithms, *references(result)]


def references(result: StudyResult) -> list[str]:
    """Return the two ends of the scale that were trained."""
    found = {method for methods in result.scores.values() for method in methods}
    return [name for name in (ALONE, POOLED) if name in found]


def ends(result: StudyResult) -> list[str]:
    """Return the note on the two reference models, if they were trained."""
    if not references(result):
        return []
    return [
        "site alone: the site's own examples, cross-validated; pooled: the other sites' examples together, "
        "if sharing were allowed. They are the two ends of the scale, not federated methods."
    ]


def compared(result: StudyResult) -> list[str]:
    """Return the scores in which methods are compared; calibration is no matter of more or less."""
    return [metric for metric in result.metrics if metric not in _CALIBRATION and result.comparisons(metric)]


def undefined(result: StudyResult) -> list[str]:
    """Say which held-out sites lack a score, and why."""
    notes = []
    for site in result.plan.held_out:
        y = result.plan.data.labels(site)
        if has_classes(result.plan.data.loss) and len(np.unique(y)) == 1:
            notes.append(f"{site} has one class only, so that it has no AUROC and is left out of its means")
        elif ALONE not in result.scores[site] and result.plan.settings.references:
            notes.append(f"{site} has too few examples of a class for a model of its own (site alone)")
    return notes


def _score_column(metric: str) -> Column:
    return Column(NAMES[metric], (metric, f"{metric}_low", f"{metric}_high"))


def _interval_cell(found: Interval, signed: bool = False) -> Cell:
    if found.value is None:
        return NOTHING
    form = "{:+.3f}" if signed else "{:.3f}"
    limits = [found.low, found.high]
    shown = [form.format(one) for one in (found.value, *limits) if one is not None]
    text = f"{shown[0]} [{shown[1]},{shown[2]}]" if len(shown) == 3 else shown[0]
    return Cell(text, parts=tuple(_digits(one) for one in (found.value, *limits)))


def _brief_cell(found: Interval) -> Cell:
    """Return a score with limits of two digits, which is what fits in a terminal."""
    if found.value is None or found.low is None or found.high is None:
        return _interval_cell(found)
    low, high = (
        (f"{one:.2f}" if abs(one) < 10 else f"{one:.3g}").replace("0.", ".", abs(one) < 1)
        for one in (found.low, found.high)
    )
    return Cell(f"{found.value:.3f} [{low},{high}]")


def _digits(value: float | None, digits: int = 6) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _bold_best(
    result: StudyResult, rows: list[tuple[Cell, ...]], algorithms: int
) -> tuple[tuple[Cell, ...], ...]:
    """Return the rows with the best algorithm of each score in bold; references are no competitors."""
    made = [list(row) for row in rows]
    for place, metric in enumerate(result.metrics, 1):
        values = {
            number: float(row[place].parts[0])
            for number, row in enumerate(made[:algorithms])
            if row[place].parts and metric not in _CALIBRATION
        }
        if len(values) > 1:
            chosen = (max if metric in HIGHER_IS_BETTER else min)(values, key=lambda number: values[number])
            made[chosen][place] = Cell(made[chosen][place].text, True, made[chosen][place].parts)
    return tuple(tuple(row) for row in made)
