"""What a person sees: tables with the right rows, real pictures, and progress."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from fedilc.callbacks import Run
from fedilc.report.plots import comparison_picture, loss_picture
from fedilc.report.progress import ProgressBar
from fedilc.report.tables import comparison_table, run_table, selections

History = list[dict[str, Any]]


def record(number: int, train: float, validation: float | None = None, test: float | None = None) -> Any:
    found: dict[str, Any] = {"round": number, "train_loss": train}
    if validation is not None:
        fair = {"worst_accuracy": 0.25, "worst_silo": "clinic-b"}
        found |= {"validation_loss": validation, "validation_accuracy": 0.75, "fairness": fair}
    if test is not None:
        found |= {"test_loss": test, "test_accuracy": 0.5, "test_auroc": None, "test_auprc": 0.625}
    return found


FULL: History = [
    record(6, 0.9, 0.5, 0.8),
    record(7, 0.7, 0.4, 0.9),
    record(8, 0.6, 0.45, 0.7),
    record(9, 0.5, 0.6, 1),
]
OTHER: History = [record(6, 0.95, 0.3, 0.75)]
NO_TEST: History = [record(6, 0.9, 0.5), record(7, 0.8, 0.6)]
TRAIN_ONLY: History = [record(1, 0.9), record(2, 0.8)]


def text(table: Table, styled: bool = False) -> str:
    console = Console(
        file=io.StringIO(),
        width=160,
        force_terminal=styled,
        color_system="standard" if styled else None,
        highlight=False,
    )
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows(table: Table) -> dict[str, list[str]]:
    """The body of a table by its first cell."""
    lines = [line.strip("│ ").split("│") for line in text(table).splitlines() if line.startswith("│")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def headings(table: Table) -> list[str]:
    return [str(column.header) for column in table.columns]


def test_each_criterion_that_can_choose_has_a_round() -> None:
    assert {name: found["round"] for name, found in selections(FULL).items()} == {
        "oracle": 8,
        "validation": 7,
        "last": 9,
    }
    assert list(selections(NO_TEST)) == ["validation", "last"]
    assert list(selections(TRAIN_ONLY)) == ["last"]


def test_a_runs_table_has_a_row_for_each_choice_of_round() -> None:
    table = run_table("demo", FULL)
    assert text(table).startswith("demo")
    assert rows(table) == {
        "oracle: lowest OOD loss": [
            "8",
            "0.700",
            "0.500",
            "0.625",
            "0.450",
            "0.750",
            "0.600",
            "0.250 clinic-b",
        ],
        "validation: lowest validation loss": [
            *("7", "0.900", "0.500", "0.625", "0.400", "0.750", "0.700", "0.250 clinic-b")
        ],
        "last: last round": ["9", "1.000", "0.500", "0.625", "0.600", "0.750", "0.500", "0.250 clinic-b"],
    }


@pytest.mark.parametrize(
    ("history", "columns"),
    [
        (FULL, ["OOD loss", "OOD acc.", "AUPRC", "val. loss", "val. acc.", "train loss"]),
        (NO_TEST, ["val. loss", "val. acc.", "train loss"]),
        (TRAIN_ONLY, ["train loss"]),
    ],
    ids=["all but AUROC", "no test", "train only"],
)
def test_a_table_has_columns_only_for_what_was_measured(history: History, columns: list[str]) -> None:
    assert headings(run_table("demo", history)) == ["chosen by", "round", *columns, "worst silo"]


def test_a_comparison_has_a_row_for_each_run_and_says_how_its_round_was_chosen() -> None:
    table = comparison_table("demo", {"fedsgd": FULL, "geometric": OTHER}, "validation")
    assert "round chosen by validation: lowest validation loss" in text(table)
    assert {name: cells[0] for name, cells in rows(table).items()} == {"fedsgd": "7", "geometric": "6"}


def test_a_comparison_marks_the_lowest_loss_of_all_runs() -> None:
    lines = text(comparison_table("demo", {"one": FULL, "two": OTHER}, "oracle"), styled=True).splitlines()
    one, two = (next(line for line in lines if name in line) for name in ("one", "two"))
    assert "\x1b[1;32m0.700\x1b[0m" in one
    assert "\x1b[1;32m0.300\x1b[0m" in two
    assert "\x1b[1;32m0.750\x1b[0m" in one, "the highest accuracy, tied, is marked in both rows"
    assert "\x1b[1;32m0.750\x1b[0m" in two
    assert "\x1b[1;32m0.450\x1b[0m" not in one


def test_a_run_without_a_number_shows_a_dash_beside_one_that_has_it() -> None:
    found = rows(comparison_table("demo", {"full": FULL, "plain": TRAIN_ONLY}, "last"))
    assert found["plain"] == ["2", "-", "-", "-", "-", "-", "0.800", "-"]


def test_a_run_whose_round_a_criterion_cannot_choose_is_left_out() -> None:
    assert list(rows(comparison_table("demo", {"full": FULL, "plain": NO_TEST}, "oracle"))) == ["full"]


def size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG, from its header."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    return width, height


@pytest.mark.parametrize("history", [FULL, NO_TEST, TRAIN_ONLY], ids=["full", "no test", "train only"])
def test_the_picture_of_a_run_is_a_png(tmp_path: Path, history: History) -> None:
    loss_picture(tmp_path / "loss.png", "demo", history)
    assert min(size(tmp_path / "loss.png")) > 400


@pytest.mark.parametrize(
    ("histories", "panels"),
    [
        ({"a": FULL, "b": OTHER}, 3),
        ({"a": NO_TEST, "b": NO_TEST}, 2),
        ({"a": TRAIN_ONLY}, 1),
        ({"a": TRAIN_ONLY, "b": FULL}, 3),
    ],
    ids=["all", "no test", "train only", "mixed"],
)
def test_the_picture_of_several_runs_has_a_panel_for_each_loss_that_any_has(
    tmp_path: Path, histories: Mapping[str, History], panels: int
) -> None:
    comparison_picture(tmp_path / "loss.png", "demo", histories)
    assert size(tmp_path / "loss.png")[0] == panels * 650


def watch(console: Console, history: History, rounds: int) -> str:
    bar = ProgressBar(console, "fedsgd")
    run = Run(rounds)
    bar.on_start(run)
    for found in history:
        run.history.append(found)
        bar.on_round(run, found)
    bar.on_end(run)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_progress_is_five_lines_where_output_is_no_terminal() -> None:
    history = [record(number, 0.5, 0.25, 0.75) for number in range(1, 101)]
    shown = watch(Console(file=io.StringIO(), width=100), history, 100).split("\n")
    assert [line for line in shown if line.strip()] == [
        f"fedsgd: round {number}/100  train 0.500  val 0.250  OOD 0.750" for number in (20, 40, 60, 80, 100)
    ]


def test_progress_says_where_a_resumed_run_goes_on() -> None:
    console = Console(file=io.StringIO(), width=100)
    ProgressBar(console, "fedsgd").on_start(Run(10, history=[record(1, 0.5)]))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "fedsgd: going on after round 1\n"


def test_progress_is_a_bar_with_losses_in_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    shown = watch(console, [record(1, 0.5, 0.25), record(2, 0.5, 0.125)], 2)
    assert "fedsgd" in shown
    assert "2/2" in shown
    assert "train 0.500  val 0.125" in shown
