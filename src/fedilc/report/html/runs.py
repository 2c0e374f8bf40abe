"""The part of an HTML report on run folders that share their data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedilc.algorithms.loss_registry import task_of
from fedilc.config.options import recorded_options
from fedilc.errors import ConfigError, FedILCError
from fedilc.evaluation.intervals import Interval, score_interval
from fedilc.evaluation.metrics import lower_is_better
from fedilc.evaluation.selection import Record, select
from fedilc.evaluation.significance import LEVEL, p_phrase, paired_test, spread
from fedilc.report.html.charts import (
    Chart,
    Heat,
    Panel,
    agreement_charts,
    band,
    common_limits,
    curves,
)
from fedilc.report.html.page import Part, make_part, setting, settings_table
from fedilc.report.plots import PANELS
from fedilc.report.recalibration_tables import recalibration_tables
from fedilc.report.run_tables import RunGroup, headings
from fedilc.report.tables import Cell, TableData, mean_cell, with_best, words
from fedilc.storage.run_folder import UPDATES
from fedilc.studies.study.plan import REFERENCES
from fedilc.studies.study.result import mean_agreement
from fedilc.training.loaded_model import load
from fedilc.training.model_card import coefficients

_MAX_SILOS, _MAX_ROWS = 24, 100


def runs_part(group: RunGroup) -> Part:
    """Return the part on runs that share their data."""
    methods = {method: next(iter(runs.values())).settings for method, runs in group.methods.items()}
    return make_part(
        "runs.html.jinja",
        group.name,
        "runs",
        _verdict(group),
        scores=_scores(group),
        silos=_silos(group),
        methods=[(method, colour) for colour, method in enumerate(group.methods)],
        curves=_curves(group),
        agreement=_agreement(group),
        commands=dict.fromkeys(line for run in group.runs for line in run.commands),
        coefficients=_coefficients(group),
        updates=_updates(group),
        settings=_settings(group.name, methods),
        silo_table=_silo_table(methods),
        software=_software(methods),
    )


def _chosen(history: Sequence[Record]) -> Record:
    """Return the round that validation chooses, or the last one without validation."""
    return select(history, "validation" if _validates(history) else "last")


def _values(group: RunGroup, method: str, metric: str) -> dict[int, float]:
    """Return a metric at the chosen round, by seed, for the seeds that have it."""
    found = {seed: _chosen(run.history).get(metric) for seed, run in group.methods[method].items()}
    return {seed: value for seed, value in found.items() if value is not None}


def _deciding(group: RunGroup) -> str:
    """Return the loss that every method has: at the test site if there is one."""
    for metric in ("test_loss", "validation_loss"):
        if all(_values(group, method, metric) for method in group.methods):
            return metric
    return "train_loss"


def _verdict(group: RunGroup) -> list[str]:
    """Say which method has the lowest loss, by how much and how sure, and what runs cannot show."""
    metric = _deciding(group)
    where = {
        "test_loss": "At the test site, on which no silo trained",
        "validation_loss": "On the silos' validation examples (there is no test site)",
        "train_loss": "On the silos' own training examples (there is nothing else to compare by)",
    }[metric]
    values = {method: _values(group, method, metric) for method in group.methods}
    best, told = _lowest(values)
    first = f"{where}, {best} has the lowest loss of {len(values)} methods: {told}."
    if len(values) == 1:
        first = f"{where}, {best} has a loss of {told}; there is no other method beside it."
    not_shown = (
        "A single test site cannot show how methods do at the next one; fedilc study leaves each site out "
        "in turn and says how sure that is."
        if metric == "test_loss"
        else "These runs cannot show how methods do at a held-out site; fedilc study measures it."
    )
    noticed = [*_against(group), *_hidden(group)]
    return [first, *_how_sure(values, best), *_at_the_end(group, metric, best), *noticed, not_shown]


def _hidden(group: RunGroup) -> list[str]:
    """Say what secure sums hide, and which rounds went without the penalty."""
    records = [record for runs in group.methods.values() for run in runs.values() for record in run.history]
    if not any("members" in record for record in records):
        return []
    without = sum("without_penalty" in record for record in records)
    said = f" {without} rounds went without the penalty, because a silo was removed." if without else ""
    return [
        "Secure sums: the coordinator learnt totals over the silos only, so that there are no losses, "
        f"numbers of examples or norms of single silos here.{said}"
    ]


def _against(group: RunGroup) -> list[str]:
    """Say which silos' updates pointed against the others', and for how many rounds in a row at most."""
    longest: dict[str, int] = {}
    methods: dict[str, list[str]] = {}
    for method, runs in group.methods.items():
        for record in (record for run in runs.values() for record in run.history):
            for silo, rounds in record.get("against", {}).items():
                longest[silo] = max(rounds, longest.get(silo, 0))
                if method not in methods.setdefault(silo, []):
                    methods[silo].append(method)
    return [
        f"The updates of silo {silo!r} pointed against those of most other silos for up to {longest[silo]} "
        f"rounds in a row ({', '.join(names)}): look at its data, and train once without it."
        for silo, names in methods.items()
    ]


def _lowest(values: Mapping[str, Mapping[int, float]]) -> tuple[str, str]:
    """Return the method of lowest mean over seeds, and its mean with those of the others in brackets."""
    means = {method: spread(list(by_seed.values()))[0] for method, by_seed in values.items()}
    best = min(means, key=means.__getitem__)
    others = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items() if name != best)
    return best, f"{means[best]:.3f}" + (f" ({others})" if others else "")


def _at_the_end(group: RunGroup, metric: str, best: str) -> list[str]:
    """Say which method has the lowest loss at the last round, if it is another one."""
    ends = {
        method: {seed: float(run.history[-1][metric]) for seed, run in runs.items()}
        for method, runs in group.methods.items()
        if all(run.history[-1].get(metric) is not None for run in runs.values())
    }
    last, told = _lowest(ends) if ends else (best, "")
    if last == best:
        return []
    return [
        f"That is at each method's round of lowest validation loss; at the last round, {last} has the lowest "
        f"loss: {told}."
    ]


def _how_sure(values: Mapping[str, Mapping[int, float]], best: str) -> list[str]:
    if len(values) == 1:
        return []
    names = [name for name in values if name != best]
    reference = next((name for known in REFERENCES for name in names if name.startswith(known)), names[0])
    seeds = sorted(values[best].keys() & values[reference].keys())
    if not seeds:
        return [f"{best} and {reference} have no seed in common, so that they are not compared."]
    test = paired_test([values[best][seed] for seed in seeds], [values[reference][seed] for seed in seeds])
    subject = f"{best} differs from {reference} by {test.difference:+.3f}"
    if test.t_p is None:
        count = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
        return [f"{subject}; with {count}, chance between seeds cannot be told from a difference."]
    sure = "is more than" if test.t_p < LEVEL else "may be"
    return [f"{subject} over {len(seeds)} seeds ({p_phrase(test.t_p)}), which {sure} chance between seeds."]


def _scores(group: RunGroup) -> TableData:
    names = []
    cells: list[dict[str, Cell]] = []
    for metric, name in headings().items():
        found = {method: mean_cell(list(_values(group, method, metric).values())) for method in group.methods}
        if any(cell.parts for cell in found.values()):
            names.append(name)
            cells.append(with_best(found, lower_is_better(metric)))
    rows = []
    for method, runs in group.methods.items():
        rounds = sorted({int(_chosen(run.history)["round"]) for run in runs.values()})
        shown = f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else str(rounds[0])
        numbers = (column[method] for column in cells)
        rows.append((method, len(runs), shown, *numbers))
    about = (
        "At the round of lowest validation loss, or the last one without validation; mean and deviation over "
        "seeds. OOD: at the test site, on which no silo trained."
    )
    columns = (*words("method"), "seeds", "round", *names)
    return TableData.of("runs", group.name, "Scores at the chosen round", columns, rows, [about])


def _silos(group: RunGroup) -> dict[str, Any] | None:
    """Return the validation accuracy (or RMSE) per silo, the worst silos first; None if not measured."""
    if by_silo := _by_silo(group, "validation_accuracy", _accuracy):
        name, kind, sign = "accuracy", "95 %", 1
        told = "Means over seeds, with the 95 % intervals that `fedilc evaluate` gives for these examples."
    elif by_silo := _by_silo(group, "validation_rmse", _range_over_seeds):
        name, kind, sign = "RMSE", "range", -1
        told = "The mean over seeds, and the range over them."
    else:
        return None
    order = sorted(by_silo, key=lambda silo: min(sign * (row[2].value or 0.0) for row in by_silo[silo]))
    ends = common_limits(row[2] for rows in by_silo.values() for row in rows)
    more = f" {len(order) - _MAX_SILOS} more silos do better." if len(order) > _MAX_SILOS else ""
    panels = [Panel(silo, by_silo[silo], ends, kind=kind) for silo in order[:_MAX_SILOS]]
    return {"score": name, "panels": panels, "told": told + more}


def _by_silo(
    group: RunGroup, key: str, limits: Callable[[list[float], int], Interval]
) -> dict[str, list[tuple[str, int, Interval]]]:
    found: dict[str, list[tuple[str, int, Interval]]] = {}
    for colour, (method, runs) in enumerate(group.methods.items()):
        measured: dict[str, list[tuple[float, int]]] = {}
        for run in runs.values():
            for silo, numbers in (_chosen(run.history).get("silos") or {}).items():
                if numbers.get(key) is not None:
                    count = int(numbers.get("validation_examples") or 0)
                    measured.setdefault(silo, []).append((float(numbers[key]), count))
        for silo, pairs in measured.items():
            interval = limits([value for value, _ in pairs], min(count for _, count in pairs))
            found.setdefault(silo, []).append((method, colour, interval))
    return found


def _accuracy(values: list[float], examples: int) -> Interval:
    """Return the mean over seeds with the interval of as many right predictions among as many examples."""
    mean = spread(values)[0]
    if not examples:
        return Interval(mean, None, None)
    place = np.arange(examples)
    y = place % 2
    outputs = [np.where(place < round(value * examples), 2 * y - 1, 1 - 2 * y) for value in values]
    found = score_interval("binary", "accuracy", y, outputs)
    return found if found.value is None else replace(found, value=mean)


def _range_over_seeds(values: list[float], _: int) -> Interval:
    return Interval(spread(values)[0], min(values), max(values))


def _curves(group: RunGroup) -> list[Chart]:
    drawn = []
    for key, title in PANELS.items():
        found = (
            band(method, colour, [{r["round"]: r.get(key) for r in run.history} for run in runs.values()])
            for colour, (method, runs) in enumerate(group.methods.items())
        )
        if lines := [line for line in found if line is not None]:
            drawn.append(curves(title[0].upper() + title[1:], "round", lines))
    return drawn


def _agreement(group: RunGroup) -> list[Heat]:
    """Return how far silos' signs agree, of the methods that measure it."""
    found = {
        method: mean_agreement(
            (r["round"], r.get("sign_agreement")) for run in runs.values() for r in run.history
        )
        for method, runs in group.methods.items()
    }
    return agreement_charts({method: by_round for method, by_round in found.items() if by_round})


def _settings(name: str, methods: Mapping[str, Mapping[str, Any]]) -> TableData:
    """Return what every run was told."""
    options = dict.fromkeys(key for facts in methods.values() for key in recorded_options(facts))
    keys = [
        key
        for key in ("algorithm", *options)
        if key != "seed" and any(setting(given.get(key)) != "none" for given in methods.values())
    ]
    return settings_table("Settings of each method", name, keys, methods)


def _coefficients(group: RunGroup) -> list[TableData]:
    """Return the coefficients of the linear models, those of each method's first run."""
    tables = []
    for method, runs in group.methods.items():
        run = next(iter(runs.values()))
        try:
            loaded = load(run.folder, "validation" if _validates(run.history) else "last")
        except FedILCError:  # a network of the user's own, or weights that are not there any more
            continue
        found = coefficients(loaded.model, loaded.columns, loaded.preprocessing)
        binary = task_of(loaded.loss) == "binary"
        rows = [
            (name, f"{value:.4g}", *([f"{np.exp(value):.4g}"] if binary else []))
            for name, value in found.items()
        ]
        columns = words("input", "coefficient", *(["odds ratio"] if binary else []))
        if rows:
            tables.append(TableData.of("coefficients", "", f"Coefficients of {method}", columns, rows, []))
    return tables


def _updates(group: RunGroup) -> list[tuple[list[TableData], str]]:
    """Return the tables of each recalibration of each run, and how many local patients it takes."""
    return [
        (recalibration_tables(update, method), update["answer"])
        for method, runs in group.methods.items()
        for run in runs.values()
        for update in run.settings.get(UPDATES, ())
    ]


def _validates(history: Sequence[Record]) -> bool:
    try:
        select(history, "validation")
    except ConfigError:
        return False
    return True


def _silo_table(methods: Mapping[str, Mapping[str, Any]]) -> TableData:
    silos = next(iter(methods.values()))["silos"]
    rows = (
        (name, *(about.get(key) or "-" for key in ("examples", "digest")))
        for name, about in list(silos.items())[:_MAX_ROWS]
    )
    more = [f"{len(silos) - _MAX_ROWS} more silos are in run.json."] if len(silos) > _MAX_ROWS else []
    columns = (*words("silo"), "training examples", *words("digest"))
    return TableData.of("silos", "", "Silos of the first run", columns, rows, more)


def _software(methods: Mapping[str, Mapping[str, Any]]) -> str:
    machines = next(iter(methods.values())).get("machines") or [{}]
    known = {key: value for key, value in machines[0].items() if key != "from_round"}
    return ", ".join(f"{key} {value}" for key, value in known.items())
