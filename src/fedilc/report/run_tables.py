"""Tables of one run, and of several runs beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedilc.algorithms.metric_name import METRICS
from fedilc.evaluation.campaign import lower_is_better
from fedilc.evaluation.selection import CRITERIA, ORACLE, Record, selections
from fedilc.report.cells import NOTHING, mean_cell, with_best
from fedilc.report.table_formats import Cell, Column, TableData, words

History = Sequence[Mapping[str, Any]]

_SETS = {"test": "out-of-distribution test set", "validation": "validation sets", "train": "training sets"}
_PARTS, _TRAIN = (("test", "OOD"), ("validation", "validation")), {"train_loss": "train loss"}
_CHOSEN_BY = Column("round chosen by", words=True)
BOTH = ("validation_accuracy", "test_accuracy")  # at the silos, and at the new site
_READINGS = {"oracle": "lowest OOD loss", "validation": "lowest val. loss", "last": "last round"}


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
