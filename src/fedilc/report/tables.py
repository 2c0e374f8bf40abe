"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from fedilc.errors import ConfigError
from fedilc.evaluation import CRITERIA, select

History = Sequence[Mapping[str, Any]]

_COLUMNS = {
    "test_loss": "OOD loss",
    "test_accuracy": "OOD accuracy",
    "test_auroc": "OOD AUROC",
    "test_auprc": "OOD AUPRC",
    "validation_loss": "validation loss",
    "validation_accuracy": "validation accuracy",
    "train_loss": "train loss",
}
_ORACLE = "The oracle begins after round 5, as in the paper."
_SHORT = {"oracle": "oracle", "validation": "valid.", "last": "last"}
_LOWER_IS_BETTER = {"test_loss", "validation_loss", "train_loss"}
_READINGS = {
    "oracle": "lowest OOD loss",
    "validation": "lowest val. loss",
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
    """One run: a column for each way to choose its round, a row for each measurement."""
    chosen = selections(history)
    table = empty_table(title)
    table.add_column("\nround chosen by", no_wrap=True)
    for criterion in chosen:
        table.add_column(f"{criterion}:\n{_READINGS[criterion]}", justify="right")
    table.add_row("round", *(str(record["round"]) for record in chosen.values()))
    for key, heading in _COLUMNS.items():
        if any(record.get(key) is not None for record in chosen.values()):
            table.add_row(heading, *(_number(record.get(key)) for record in chosen.values()))
    table.add_row("worst silo", *(_worst(record) for record in chosen.values()))
    if "oracle" in chosen:
        table.caption = _ORACLE
    return table


def comparison_table(title: str, histories: Mapping[str, History], first: str = "algorithm") -> Table:
    """Several runs, a row each, under every criterion; the best of each column in bold."""
    chosen = {name: selections(history) for name, history in histories.items()}
    tested = any("oracle" in found for found in chosen.values())
    validated = any("validation" in found for found in chosen.values())
    part = "test" if tested else "validation" if validated else "train"
    keys = [key for key in (f"{part}_loss", f"{part}_accuracy") if key in _COLUMNS]
    columns = [
        (criterion, key)
        for criterion in CRITERIA
        for key in keys
        if any(_value(found, criterion, key) is not None for found in chosen.values())
    ]
    table = empty_table(title)
    table.add_column(f"\n{first}", overflow="fold")
    for criterion, key in columns:
        measured = _COLUMNS[key].split()[-1].replace("accuracy", "acc.")
        table.add_column(f"{_SHORT[criterion]}\n{measured}", justify="right", no_wrap=True)
    table.add_column("worst\nsilo", justify="right", no_wrap=True)
    set_name = {"test": "out-of-distribution test set", "validation": "validation sets"}.get(
        part, "training sets"
    )
    chosen_by = ", ".join(f"{_SHORT[name]}: {_READINGS[name]}" for name in dict(columns))
    caption = f"On the {set_name}, at the round chosen by {chosen_by}. "
    caption += "Worst silo: its last validation accuracy."
    table.caption = f"{caption} {_ORACLE}" if tested else caption
    best = {column: _best(chosen, *column) for column in columns}
    for name, found in chosen.items():
        cells = []
        for column in columns:
            text = _number(_value(found, *column))
            marked = len(chosen) > 1 and text == _number(best[column])
            cells.append(f"[bold green]{text}[/]" if marked else text)
        table.add_row(escape(name), *cells, _worst(found["last"]).split()[0])
    return table


def empty_table(title: str) -> Table:
    """A table as all of ours look, still without columns."""
    return Table(
        title=escape(title),
        title_justify="left",
        title_style="bold",
        header_style="",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )


def _value(found: Mapping[str, Mapping[str, Any]], criterion: str, key: str) -> float | None:
    return found[criterion].get(key) if criterion in found else None


def _best(chosen: Mapping[str, Mapping[str, Mapping[str, Any]]], criterion: str, key: str) -> float:
    values = [_value(found, criterion, key) for found in chosen.values()]
    present = [value for value in values if value is not None]
    return min(present) if key in _LOWER_IS_BETTER else max(present)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _worst(record: Mapping[str, Any]) -> str:
    fair = record.get("fairness")
    return f"{fair['worst_accuracy']:.3f} {escape(fair['worst_silo'])}" if fair else "-"
