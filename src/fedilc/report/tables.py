"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from fedilc.errors import ConfigError
from fedilc.evaluation import CRITERIA, select

History = Sequence[Mapping[str, Any]]

_COLUMNS = {
    "test_loss": "OOD loss",
    "test_accuracy": "OOD acc.",
    "test_auroc": "AUROC",
    "test_auprc": "AUPRC",
    "validation_loss": "val. loss",
    "validation_accuracy": "val. acc.",
    "train_loss": "train loss",
}
_LOWER_IS_BETTER = {"test_loss", "validation_loss", "train_loss"}
_READINGS = {
    "oracle": "lowest OOD loss",
    "validation": "lowest validation loss",
    "last": "last round",
}


def selections(history: History) -> dict[str, Mapping[str, Any]]:
    """The record each criterion chooses, for those that can choose one."""
    chosen = {}
    for criterion in CRITERIA:
        try:
            chosen[criterion] = select(history, criterion)
        except ConfigError:
            continue
    return chosen


def run_table(title: str, history: History) -> Table:
    """One run: a row for each way to choose its round."""
    rows = selections(history)
    table = _table(title, "chosen by", rows.values())
    for criterion, record in rows.items():
        table.add_row(f"{criterion}: {_READINGS[criterion]}", *_cells(record, rows.values(), mark=False))
    return table


def comparison_table(title: str, histories: Mapping[str, History], criterion: str) -> Table:
    """Several runs under one criterion, a row each, the best of each column in bold."""
    rows = {
        name: found[criterion]
        for name, history in histories.items()
        if criterion in (found := selections(history))
    }
    caption = f"round chosen by {criterion}: {_READINGS[criterion]}"
    table = _table(f"{title} · {caption}", "algorithm", rows.values())
    for name, record in rows.items():
        table.add_row(name, *_cells(record, rows.values(), mark=len(rows) > 1))
    return table


def _table(title: str, first: str, records: Any) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    table.add_column(first, no_wrap=True)
    table.add_column("round", justify="right")
    for key in _present(records):
        table.add_column(_COLUMNS[key], justify="right")
    table.add_column("worst silo", no_wrap=True)
    return table


def _present(records: Any) -> list[str]:
    return [key for key in _COLUMNS if any(record.get(key) is not None for record in records)]


def _cells(record: Mapping[str, Any], records: Any, mark: bool) -> list[str]:
    cells = [str(record["round"])]
    for key in _present(records):
        values = [float(other[key]) for other in records if other.get(key) is not None]
        best = min(values) if key in _LOWER_IS_BETTER else max(values)
        value = record.get(key)
        text = "-" if value is None else f"{value:.3f}"
        tied = value is not None and text == f"{best:.3f}"
        cells.append(f"[bold green]{text}[/]" if mark and tied else text)
    fair = record.get("fairness")
    cells.append(f"{fair['worst_accuracy']:.3f} {fair['worst_silo']}" if fair else "-")
    return cells
