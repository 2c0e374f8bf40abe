"""Tables of runs: which runs are compared with each other, and what they show in one sentence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedilc.algorithms import Algorithm
from fedilc.algorithms.metric_registry import METRICS
from fedilc.config.options import recorded_options
from fedilc.evaluation.metrics import lower_is_better
from fedilc.evaluation.selection import CRITERIA, ORACLE, Record, selections
from fedilc.report.tables import NOTHING, Cell, Column, TableData, mean_cell, with_best, words
from fedilc.storage.run_folder import UPDATES, RunFolder

History = Sequence[Mapping[str, Any]]
_SETS = {"test": "out-of-distribution test set", "validation": "validation sets", "train": "training sets"}
_CHOSEN_BY = Column("round chosen by", words=True)
BOTH = ("validation_accuracy", "test_accuracy")  # at the silos, and at the new site
_READINGS = {"oracle": "lowest OOD loss", "validation": "lowest val. loss", "last": "last round"}
CLEARLY = 0.05  # the least difference of accuracies that counts
_COMPARED = ("intra", "inter", "penalty")
_CALLED = {"geometric": "the weighted geometric mean", "fishr": "the Fishr penalty"}


@dataclass(frozen=True)
class StoredRun:
    """A run's folder, its settings as run.json has them, its rounds, and the commands that computed them."""

    folder: Path
    settings: Mapping[str, Any]
    history: Sequence[Record]
    commands: Sequence[str]


@dataclass
class RunGroup:
    """Runs that share their data, by method and seed."""

    name: str
    methods: dict[str, dict[int, StoredRun]] = field(default_factory=dict)

    @property
    def runs(self) -> list[StoredRun]:
        """Return all runs, method after method."""
        return [run for by_seed in self.methods.values() for run in by_seed.values()]

    @property
    def title(self) -> str:
        """Return the name, and the seeds of the runs."""
        seeds = sorted({run.settings["seed"] for run in self.runs})
        return f"{self.name} · seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"

    @property
    def histories(self) -> dict[str, Sequence[Record]]:
        """Return the rounds of each run by its folder's name, or by its path if others have that name."""
        names = [run.folder.resolve().name for run in self.runs]
        return {
            name if names.count(name) == 1 else str(run.folder): run.history
            for name, run in zip(names, self.runs, strict=True)
        }


def run_groups(folders: Sequence[Path]) -> list[RunGroup]:
    """Return the runs in these folders that have done a round, by what data they share."""
    opened = {folder: RunFolder(folder) for folder in folders}
    stored = [StoredRun(path, f.settings(), f.history(), f.timing.commands()) for path, f in opened.items()]
    runs = [run for run in stored if run.history]
    by_data: dict[str, list[StoredRun]] = {}
    for run in runs:
        by_data.setdefault(_data(run.settings, runs), []).append(run)
    names: Counter[str] = Counter()
    groups = []
    for members in by_data.values():
        name = str(members[0].settings.get("experiment") or members[0].settings.get("federation"))
        names[name] += 1
        group = RunGroup(name if names[name] == 1 else f"{name}, data {names[name]}")
        for run in members:
            _add(group, _method(run, members), run)
        groups.append(group)
    return groups


def _data(settings: Mapping[str, Any], runs: Sequence[StoredRun]) -> str:
    """Return what runs with comparable numbers share.

    An experiment draws its data by the seed, so that its digests may differ between seeds but not within one.
    """
    shared = [settings.get(key) for key in ("experiment", "federation", "data")]
    shared.append(sorted(settings["silos"]))
    alike = [
        other.settings
        for other in runs
        if all(other.settings.get(key) == settings.get(key) for key in ("seed", "experiment"))
    ]
    digests = [settings.get("silos"), settings.get("test")]
    clash = any([other.get("silos"), other.get("test")] != digests for other in alike)
    return json.dumps([*shared, digests] if clash or not settings.get("experiment") else shared)


def _method(run: StoredRun, runs: Sequence[StoredRun]) -> str:
    """Return the name of a run's method: its algorithm, and what tells it from others of that algorithm."""
    same = [one.settings for one in runs if one.settings["algorithm"] == run.settings["algorithm"]]
    differs = [
        f"{key} {run.settings.get(key)}"
        for key in dict.fromkeys(key for one in same for key in recorded_options(one))
        if key != "seed" and any(one.get(key) != run.settings.get(key) for one in same)
    ]
    updates = [f"recalibrated ({one['kind']})" for one in run.settings.get(UPDATES, ())]
    return ", ".join([run.settings["algorithm"], *differs, *updates])


def _add(group: RunGroup, method: str, run: StoredRun) -> None:
    """Add a run to its method; if there is one of its seed, as a method of its own, "run 2"."""
    name, number, seed = method, 1, int(run.settings["seed"])
    while seed in group.methods.get(name, {}):
        number += 1
        name = f"{method}, run {number}"
    group.methods.setdefault(name, {})[seed] = run


_PARTS, _TRAIN = (("test", "OOD"), ("validation", "validation")), {"train_loss": "train loss"}


def headings() -> dict[str, str]:
    """Return the numbers of a record that tables show, with their headings: at the test site first."""
    names = {name: METRICS.get(name).heading for name in METRICS.names()}
    sets = {
        f"{part}_{name}": f"{label} {heading}" for part, label in _PARTS for name, heading in names.items()
    }
    return {key: heading for key, heading in sets.items() if key != "validation_auprc"} | _TRAIN


def run_table(title: str, history: History) -> TableData:
    """Return the table of one run: a column per criterion that chooses a round, a row per measurement."""
    chosen = selections(history)
    rows: list[tuple[object, ...]] = [("round", *(record["round"] for record in chosen.values()))]
    for metric, heading in headings().items():
        cells = [_cell(record, metric) for record in chosen.values()]
        if any(cell.parts for cell in cells):
            rows.append((heading, *cells))
    rows.append(("worst silo", *(_worst(record, named=True) for record in chosen.values())))
    columns = (_CHOSEN_BY, *(f"{criterion}: {_READINGS[criterion]}" for criterion in chosen))
    return TableData.of("run", title, title, columns, rows, [f"{ORACLE}."] * ("oracle" in chosen))


def comparison_table(title: str, histories: Mapping[str, History], first: str = "algorithm") -> TableData:
    """Return a table of several runs: a group of rows per criterion, the best of each group in bold.

    It has the numbers of the test set, or of the validation sets if no run has a test set, or else those of
    the training sets. `first` is what the runs are called.
    """
    chosen = {name: selections(history) for name, history in histories.items()}
    records = [record for by_criterion in chosen.values() for record in by_criterion.values()]
    shown = headings()
    measured = [metric for metric in shown if any(r.get(metric) is not None for r in records)]
    part = next((part for part in _SETS if f"{part}_loss" in measured), "train")
    metrics = [metric for metric in measured if metric.startswith(part) and metric != "test_auprc"]
    rows = []
    criteria = [criterion for criterion in CRITERIA if any(criterion in found for found in chosen.values())]
    for criterion in criteria:
        group = {name: found[criterion] for name, found in chosen.items() if criterion in found}
        measured_cells = (
            (metric, {name: _cell(record, metric) for name, record in group.items()}) for metric in metrics
        )
        best = [with_best(cells, lower_is_better(metric)) for metric, cells in measured_cells]
        for name, record in group.items():
            numbers = (cells[name] for cells in best)
            rows.append((criterion, name, record["round"], *numbers, _worst(record)))
    columns = (_CHOSEN_BY, *words(first), "round", *(shown[metric] for metric in metrics), "worst silo")
    readings = [ORACLE if c == "oracle" else f"{c}: {_READINGS[c]}" for c in criteria]
    worst = "RMSE" if any("validation_rmse" in record for record in records) else "accuracy"
    note = f"On the {_SETS[part]}. {'; '.join(readings)}. Worst silo: its validation {worst}."
    if len({history[-1]["round"] for history in histories.values()}) > 1:
        note += " The runs have different numbers of rounds: the rows under 'last' show them."
    return TableData.of("comparison", title, title, columns, rows, [note], grouped=True)


def last_round_table(title: str, histories: Mapping[str, History]) -> TableData:
    """Return the accuracies of several runs' last rounds, at the silos and at the new site."""
    last = {name: history[-1] for name, history in histories.items()}
    cells = [with_best({n: _cell(r, metric) for n, r in last.items()}, False) for metric in BOTH]
    rows = [
        (name, record["round"], cells[0][name], _worst(record), cells[1][name])
        for name, record in last.items()
    ]
    columns = (*words("algorithm"), "round", "silos", "worst silo", "new site")
    note = "Accuracy: the mean over the silos' validation sets, their lowest, and at the held-out site."
    return TableData.of("last-round", title, title, columns, rows, [note])


def _cell(record: Record, metric: str) -> Cell:
    value = record.get(metric)
    return NOTHING if value is None else mean_cell([value])


def _worst(record: Record, *, named: bool = False) -> Cell:
    """Return the validation accuracy of the worst silo, or its RMSE, and its name."""
    fairness = record.get("fairness")
    if fairness:
        return Cell(f"{fairness['worst_accuracy']:.3f}" + f" {fairness['worst_silo']}" * named)
    errors = {name: numbers.get("validation_rmse") for name, numbers in record.get("silos", {}).items()}
    known = {name: error for name, error in errors.items() if error is not None}
    if not known:
        return NOTHING
    worst = max(known, key=known.__getitem__)
    return Cell(f"{known[worst]:.3f}" + f" {worst}" * named)


def finding(histories: Mapping[str, History], parts: Mapping[str, Algorithm]) -> str | None:
    """Return what the last rounds of these runs show at the new site.

    The first run is the reference and the last one the method. If the others are the method without one of
    its parts each, the sentence names the part that does the work. Otherwise it compares the two.

    Args:
        histories: the records of each run, by name.
        parts: the algorithm of each run, by name.

    Returns:
        None if a run has no accuracy at the silos or at the new site.
    """
    last = {name: history[-1] for name, history in histories.items()}
    if any(record.get(key) is None for record in last.values() for key in BOTH):
        return None
    silos, site = ({name: float(record[key]) for name, record in last.items()} for key in BOTH)
    effects = _effects(site, parts)
    return _ablation(next(iter(site)), effects) if effects else _comparison(silos, site)


@dataclass(frozen=True)
class _Effect:
    """How much a part changes the accuracy at the new site: without the other part, and with it."""

    part: str
    alone: float
    added: float

    @property
    def helps(self) -> bool:
        return min(self.alone, self.added) > CLEARLY

    @property
    def is_idle(self) -> bool:
        return max(self.alone, self.added) <= CLEARLY


def _effects(site: Mapping[str, float], parts: Mapping[str, Algorithm]) -> list[_Effect]:
    """Return the effects of the method's two parts if the runs are with and without each; otherwise none."""
    found = [(replace(parts[name], summary="", defaults={}), value) for name, value in site.items()]
    (reference, base), *_, (method, both) = found
    changed = [key for key in _COMPARED if getattr(reference, key) != getattr(method, key)]
    bare = replace(method, **{key: getattr(reference, key) for key in changed})
    if len(changed) != 2 or bare != reference:
        return []
    alone = {}
    for key in changed:
        with_it = replace(reference, **{key: getattr(method, key)})
        values = [value for algorithm, value in found if algorithm == with_it]
        if not values:
            return []
        alone[key] = values[0]
    effects = []
    for key, other in (changed, changed[::-1]):
        choice = getattr(method, key)
        name = _CALLED.get(str(choice), f"{key}={choice}")
        effects.append(_Effect(name, alone[key] - base, both - alone[other]))
    return effects


def _ablation(reference: str, effects: list[_Effect]) -> str:
    one, other = sorted(effects, key=lambda effect: -effect.alone)
    if one.helps and other.is_idle:
        told = f"here {one.part} does the work, and {other.part} does not"
    elif one.helps and other.helps:
        told = "here both help"
    elif one.is_idle and other.is_idle:
        told = "here neither helps clearly"
    else:
        told = "here the effect of one depends on the other"
    return (
        f"In this run, compared with {reference}, the accuracy at the new site changes by "
        f"{_points(one.alone)} points with {one.part}, by {_points(other.alone)} points with "
        f"{other.part}, and by {_points(one.alone + other.added)} points with both: {told}."
    )


def _points(change: float) -> str:
    """Return a change of accuracy in percentage points, with its sign.

    >>> _points(0.104), _points(-0.001)
    ('+10', '+0')
    """
    return f"{round(100 * change):+d}"


def _comparison(silos: Mapping[str, float], site: Mapping[str, float]) -> str:
    reference, *_, method = site
    gain, cost = site[method] - site[reference], silos[reference] - silos[method]
    if abs(gain) <= CLEARLY:
        told = "neither is clearly better at the new site"
    elif gain < 0:
        told = f"{reference} is the better one at the new site"
    elif cost > 0:
        told = f"{reference} learnt more of what helps at the silos and misleads at the new site"
    else:
        told = f"{method} is the better one at both"
    return (
        f"In this run, {reference} is right in {silos[reference]:.0%} of the cases at the silos and in "
        f"{site[reference]:.0%} at the new site, and {method} in {silos[method]:.0%} and {site[method]:.0%}: "
        f"{told}."
    ).replace("%", " %")
