"""What a person sees: tables with the right rows, real pictures, and progress."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from terminals import in_terminal

from fedilc import algorithms
from fedilc.errors import ConfigError
from fedilc.evaluation.selection import selections
from fedilc.report.formats import TableData
from fedilc.report.plots import comparison_picture, loss_picture
from fedilc.report.progress import ProgressBar
from fedilc.report.tables import comparison_table, run_table
from fedilc.training.callbacks import Run

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


def text(table: TableData, styled: bool = False, width: int = 160) -> str:
    return in_terminal(table, width, styled)


def rows(table: TableData, styled: bool = False) -> dict[str, list[str]]:
    """The body of a table, from the rule to the next blank line, by its first cell."""
    lines = text(table, styled).splitlines()
    rule = next(number for number, line in enumerate(lines) if set(line.strip()) == {"─"})
    body = takewhile(str.strip, lines[rule + 1 :])
    cells = [re.split(r" {2,}", line.strip()) for line in body]
    return {name: rest for name, *rest in cells}


def headings(table: TableData) -> list[str]:
    return [column.title for column in table.columns]


def caption(table: TableData) -> str:
    assert table.notes[0] in " ".join(text(table).split())
    return table.notes[0]


def test_each_criterion_that_can_choose_has_a_round() -> None:
    assert {name: found["round"] for name, found in selections(FULL).items()} == {
        "oracle": 8,
        "validation": 7,
        "last": 9,
    }
    assert list(selections(NO_TEST)) == ["validation", "last"]
    assert list(selections(TRAIN_ONLY)) == ["last"]


def test_a_runs_table_has_a_column_for_each_choice_of_round_and_a_row_for_each_measurement() -> None:
    table = run_table("demo", FULL)
    assert text(table).startswith("demo")
    assert headings(table) == [
        "round chosen by",
        "oracle: lowest OOD loss",
        "validation: lowest val. loss",
        "last: last round",
    ]
    assert rows(table) == {
        "round": ["8", "7", "9"],
        "OOD loss": ["0.700", "0.900", "1.000"],
        "OOD accuracy": ["0.500"] * 3,
        "OOD AUPRC": ["0.625"] * 3,
        "validation loss": ["0.450", "0.400", "0.600"],
        "validation accuracy": ["0.750"] * 3,
        "train loss": ["0.600", "0.700", "0.500"],
        "worst silo": ["0.250 clinic-b"] * 3,
    }


VALIDATED = ("validation loss", "validation accuracy")


@pytest.mark.parametrize(
    ("history", "choices", "measurements"),
    [
        (FULL, ["oracle", "validation", "last"], ["OOD loss", "OOD accuracy", "OOD AUPRC", *VALIDATED]),
        (NO_TEST, ["validation", "last"], [*VALIDATED]),
        (TRAIN_ONLY, ["last"], []),
    ],
    ids=["all but AUROC", "no test", "train only"],
)
def test_a_runs_table_shows_only_what_was_measured_and_could_be_chosen(
    history: History, choices: list[str], measurements: list[str]
) -> None:
    table = run_table("demo", history)
    assert [heading.split(":")[0] for heading in headings(table)[1:]] == choices
    assert list(rows(table)) == ["round", *measurements, "train loss", "worst silo"]


def test_a_run_that_one_choice_did_not_evaluate_shows_a_dash_there() -> None:
    found = rows(run_table("demo", [*FULL, record(10, 0.4)]))
    assert found["round"] == ["8", "7", "10"]
    assert found["OOD loss"] == ["0.700", "0.900", "-"]
    assert found["worst silo"] == ["0.250 clinic-b", "0.250 clinic-b", "-"]


Rows = dict[tuple[str, str], list[str]]


def compared(table: TableData, styled: bool = False) -> Rows:
    """The body of a comparison by criterion, which has a line of its own above its group, and run."""
    lines = text(table, styled).splitlines()
    rule = next(number for number, line in enumerate(lines) if set(line.strip()) == {"─"})
    found: Rows = {}
    criterion = ""
    body = takewhile(lambda line: "On the " not in line, lines[rule + 1 :])
    for line in filter(str.strip, body):
        cells = re.split(r" {2,}", line.strip())
        if len(cells) == 1:
            criterion = re.sub(r"\x1b\[[0-9;]*m", "", cells[0])
        else:
            found[criterion, cells[0]] = cells[1:]
    return found


def test_a_comparison_has_a_row_for_each_run_with_its_round_loss_and_areas_under_every_criterion() -> None:
    table = comparison_table("demo", {"fedsgd": FULL, "geometric": [{**OTHER[0], "test_auroc": 0.875}]})
    assert text(table).startswith("demo")
    assert headings(table) == [
        *("round chosen by", "algorithm", "round", "OOD loss", "OOD accuracy", "OOD AUROC", "worst silo"),
    ]
    other = ["6", "0.750", "0.500", "0.875", "0.250"]
    assert compared(table) == {
        ("oracle", "fedsgd"): ["8", "0.700", "0.500", "-", "0.250"],
        ("oracle", "geometric"): other,
        ("validation", "fedsgd"): ["7", "0.900", "0.500", "-", "0.250"],
        ("validation", "geometric"): other,
        ("last", "fedsgd"): ["9", "1.000", "0.500", "-", "0.250"],
        ("last", "geometric"): other,
    }


def test_a_comparisons_caption_says_what_was_measured_and_that_nobody_can_know_the_oracles_round() -> None:
    assert caption(comparison_table("demo", {"one": FULL, "two": [*NO_TEST, *FULL[2:]]})) == (
        "On the out-of-distribution test set. oracle: the round of lowest test loss, which nobody can know "
        "in practice; validation: lowest val. loss; last: last round. Worst silo: its validation accuracy."
    )


def test_a_comparison_of_runs_of_different_length_says_so() -> None:
    said = "The runs have different numbers of rounds"
    assert said in caption(comparison_table("demo", {"one": FULL, "two": FULL[:2]}))
    assert said not in caption(comparison_table("demo", {"one": FULL, "two": FULL}))


def test_a_comparison_without_a_test_set_is_of_the_validation_sets() -> None:
    table = comparison_table("demo", {"one": NO_TEST, "two": [record(6, 0.9, 0.4)]})
    assert headings(table)[3:-1] == ["validation loss", "validation accuracy"]
    assert compared(table) == {
        ("validation", "one"): ["6", "0.500", "0.750", "0.250"],
        ("validation", "two"): ["6", "0.400", "0.750", "0.250"],
        ("last", "one"): ["7", "0.600", "0.750", "0.250"],
        ("last", "two"): ["6", "0.400", "0.750", "0.250"],
    }
    assert caption(table).startswith(
        "On the validation sets. validation: lowest val. loss; last: last round."
    )


def test_a_comparison_names_its_second_column_after_what_it_compares() -> None:
    assert headings(comparison_table("demo", {"one": FULL}, first="run"))[1] == "run"


BEST = re.compile(r"\x1b\[1;32m(.*)\x1b\[0m")


def marked(table: TableData) -> dict[tuple[str, str], list[bool]]:
    """Which cells of the table are marked as the best of their column and group."""
    found = compared(table, True)
    return {name: [bool(BEST.fullmatch(cell)) for cell in cells] for name, cells in found.items()}


def test_a_comparison_marks_the_lowest_loss_and_the_highest_accuracy_of_each_group_ties_included() -> None:
    better = [{**OTHER[0], "test_accuracy": 0.625}]
    found = marked(comparison_table("demo", {"one": FULL, "two": better, "three": OTHER}))
    assert found == {
        ("oracle", "one"): [False, True, False, False],
        ("oracle", "two"): [False, False, True, False],
        ("oracle", "three"): [False] * 4,
        ("validation", "one"): [False] * 4,
        ("validation", "two"): [False, True, True, False],
        ("validation", "three"): [False, True, False, False],
        ("last", "one"): [False] * 4,
        ("last", "two"): [False, True, True, False],
        ("last", "three"): [False, True, False, False],
    }


def test_a_run_alone_is_not_marked_as_the_best() -> None:
    assert not any(map(any, marked(comparison_table("demo", {"one": FULL})).values()))


def test_a_run_without_a_number_shows_a_dash_beside_one_that_has_it() -> None:
    found = compared(comparison_table("demo", {"full": FULL, "plain": TRAIN_ONLY}))
    assert ("oracle", "plain") not in found
    assert found["last", "plain"] == ["2", "-", "-", "-"]
    assert "-" not in found["last", "full"]


@pytest.mark.parametrize("name", ["a[bold]b", "a[/b]", "[red]"])
def test_brackets_in_a_name_are_shown_and_not_taken_for_markup(name: str) -> None:
    fair = {"worst_accuracy": 0.25, "worst_silo": name}
    history = [{**FULL[0], "fairness": fair}]
    assert text(run_table(name, history)).startswith(name)
    assert rows(run_table("demo", history))["worst silo"] == [f"0.250 {name}"] * 3
    assert text(comparison_table(name, {"one": history})).startswith(name)
    assert {run for _, run in compared(comparison_table("demo", {name: history}))} == {name}


MEASURED = (
    *("test_loss", "test_accuracy", "test_auroc", "test_auprc"),
    *("validation_loss", "validation_accuracy", "train_loss"),
)


def different(number: int, oracle: bool, validation: bool) -> dict[str, Any]:
    """A record whose every measurement is another number, the losses lowest where asked."""
    found = {key: (100 * place + number) / 1000 for place, key in enumerate(MEASURED, 1)}
    found["test_loss"] -= 0.05 * oracle
    found["validation_loss"] -= 0.05 * validation
    fair = {"worst_accuracy": 0.8 + number / 1000, "worst_silo": "flip-0.75"}
    return {"round": 130 + number, "fairness": fair, **found}


DIFFERENT: History = [different(1, True, False), different(2, False, True), different(3, False, False)]


def unseen(shown: str, keys: Sequence[str]) -> list[str]:
    return [f"{found[key]:.3f}" for found in DIFFERENT for key in keys if f"{found[key]:.3f}" not in shown]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_runs_table_shows_every_number_in_a_terminal(width: int) -> None:
    shown = text(run_table("demo", DIFFERENT), width=width)
    assert unseen(shown, MEASURED) == []
    assert re.findall(r"\b13[123]\b", shown) == ["131", "132", "133"]
    assert re.findall(r"0\.80[123] flip-0\.75", shown) == [f"0.80{number} flip-0.75" for number in (1, 2, 3)]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_comparison_of_all_algorithms_shows_every_number_in_a_terminal(width: int) -> None:
    shown = text(comparison_table("demo", dict.fromkeys(algorithms.names(), DIFFERENT)), width=width)
    lines = shown.splitlines()
    for name in algorithms.names():
        (one, two, three) = [line.split() for line in lines if name in line.split()[:1]]
        for line, found in zip((one, two, three), DIFFERENT, strict=True):
            numbers = [found[key] for key in ("test_loss", "test_accuracy", "test_auroc")]
            worst = found["fairness"]["worst_accuracy"]
            assert line[-5:] == [str(found["round"]), *(f"{number:.3f}" for number in (*numbers, worst))]


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


def test_a_picture_makes_the_folder_it_goes_to(tmp_path: Path) -> None:
    loss_picture(tmp_path / "deep" / "er" / "loss.png", "demo", FULL)
    assert min(size(tmp_path / "deep" / "er" / "loss.png")) > 400


@pytest.mark.parametrize("name", ["loss.xyz", "file/loss.png"], ids=["format", "folder"])
def test_a_picture_that_cannot_be_written_is_named_in_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"the picture .*{name} cannot be written: ") as refused:
        comparison_picture(tmp_path / name, "demo", {"a": FULL})
    assert "\n" not in str(refused.value)


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


def test_progress_tells_the_round_of_a_loss_that_was_measured_earlier() -> None:
    history = [record(n, 0.5, *((0.25, 0.75) if n % 3 == 0 else ())) for n in range(1, 6)]
    shown = watch(Console(file=io.StringIO(), width=100), history, 5).splitlines()
    assert [line.strip() for line in shown if line.strip()] == [
        "fedsgd: round 1/5  train 0.500",
        "fedsgd: round 2/5  train 0.500",
        "fedsgd: round 3/5  train 0.500  val 0.250  OOD 0.750",
        "fedsgd: round 4/5  train 0.500  round 3: val 0.250  OOD 0.750",
        "fedsgd: round 5/5  train 0.500  round 3: val 0.250  OOD 0.750",
    ]


def test_the_bar_with_an_earlier_rounds_losses_fits_a_terminal_of_eighty_columns() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    bar = ProgressBar(console, "fishr-intra-arith")
    run = Run(301)
    bar.on_start(run)
    bar.on_round(run, record(120, 0.5, 0.25, 0.75))
    bar.on_round(run, record(123, 0.5))
    bar.on_end(run)
    assert isinstance(console.file, io.StringIO)
    assert "train 0.500  round 120: val 0.250  OOD 0.750" in console.file.getvalue()


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
