"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from fedilc.errors import ConfigError
from fedilc.evaluation import CRITERIA, select
from fedilc.evaluation.selection import ORACLE

History = Sequence[Mapping[str, Any]]

_COLUMNS = {
    "test_loss": "OOD loss",
    "test_accuracy": "OOD accuracy",
    "test_auroc": "OOD AUROC",
    "test_auprc": "OOD AUPRC",
    "validation_loss": "validation loss",
    "validation_accuracy": "validation accuracy",
    "validation_auroc": "validation AUROC",
    "train_loss": "train loss",
}
_COMPARED = [
    f"{part}_{one}" for part in ("test", "validation", "train") for one in ("loss", "accuracy", "auroc")
]
_SETS = {"test": "out-of-distribution test set", "validation": "validation sets", "train": "training sets"}
_WORST = "Worst silo: its validation accuracy."
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
        table.caption = f"{ORACLE}."
    return table


def comparison_table(title: str, histories: Mapping[str, History], first: str = "algorithm") -> Table:
    """Compare several runs: a group of rows for each criterion, the best of each column and group in bold."""
    chosen = {name: selections(history) for name, history in histories.items()}
    part = next(
        (part for part in _SETS if any(_has(found, f"{part}_loss") for found in chosen.values())), "train"
    )
    keys = [key for key in _COMPARED if key.startswith(part) and any(_has(f, key) for f in chosen.values())]
    table = empty_table(title)
    table.add_column("round\nchosen by", no_wrap=True)
    table.add_column(f"\n{first}", overflow="fold")
    for heading in ("\nround", *(_COLUMNS[key].replace(" ", "\n", 1) for key in keys), "worst\nsilo"):
        table.add_column(heading, justify="right", no_wrap=True)
    for criterion in CRITERIA:
        rows = {name: found[criterion] for name, found in chosen.items() if criterion in found}
        best = {key: _best(rows.values(), key) for key in keys}
        for number, (name, record) in enumerate(rows.items()):
            cells = [_marked(_number(record.get(key)), best[key], len(histories) > 1) for key in keys]
            label = "" if number else criterion
            table.add_row(label, escape(name), str(record["round"]), *cells, _worst(record).split()[0])
    table.caption = _caption(part, chosen, histories)
    return table


def _caption(
    part: str, chosen: Mapping[str, Mapping[str, Mapping[str, Any]]], histories: Mapping[str, History]
) -> str:
    """Say what was measured, how rounds were chosen, and whether runs are of one length."""
    by = [name for name in CRITERIA if any(name in found for found in chosen.values())]
    readings = {"oracle": ORACLE, **{name: f"{name}: {_READINGS[name]}" for name in ("validation", "last")}}
    sentences = [f"On the {_SETS[part]}. {'; '.join(readings[name] for name in by)}.", _WORST]
    if len({history[-1]["round"] for history in histories.values()}) > 1:
        sentences.append("The runs have different numbers of rounds: the row under 'last' tells each one's.")
    return " ".join(sentences)


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


def _has(found: Mapping[str, Mapping[str, Any]], key: str) -> bool:
    return any(record.get(key) is not None for record in found.values())


def _best(records: Iterable[Mapping[str, Any]], key: str) -> str:
    values = [record[key] for record in records if record.get(key) is not None]
    choose = min if key in _LOWER_IS_BETTER else max
    return _number(choose(values, default=None))


def _marked(text: str, best: str, several: bool) -> str:
    return f"[bold green]{text}[/]" if several and text == best != "-" else text


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _worst(record: Mapping[str, Any]) -> str:
    fair = record.get("fairness")
    return f"{fair['worst_accuracy']:.3f} {escape(fair['worst_silo'])}" if fair else "-"
