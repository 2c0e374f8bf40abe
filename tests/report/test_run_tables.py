"""Tables of one run and of several: the right rows, whole in a terminal, the best in bold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import pytest
from histories import FULL, NO_TEST, OTHER, TRAIN_ONLY, History, record
from terminals import in_terminal

from fedilc import algorithms
from fedilc.report.run_tables import comparison_table, last_round_table, run_table
from fedilc.report.tables import TableData


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


HISTORY = [
    {
        "round": 6,
        "train_loss": 0.1,
        "validation_loss": 0.2,
        "validation_accuracy": 0.3,
        "test_loss": 0.4,
        "test_accuracy": 0.5,
        "fairness": {"worst_accuracy": 0.6, "worst_silo": "a"},
    }
]


@pytest.mark.parametrize("folder", ["runs/color-digits", "/home/user/projects/hospital/runs/color-digits"])
def test_a_comparison_of_folders_shows_every_number_in_a_terminal(folder: str) -> None:
    shown = in_terminal(
        comparison_table("runs", {f"{folder}/{n}-seed0": HISTORY for n in algorithms.PAPER}, "run"), 80
    )
    for number in ("0.400", "0.500", "0.600"):
        assert shown.count(number) >= len(algorithms.PAPER)


def test_a_comparison_of_all_algorithms_shows_whole_headings_in_a_terminal() -> None:
    assert "…" not in in_terminal(comparison_table("demo", dict.fromkeys(algorithms.names(), HISTORY)), 80)


def test_a_comparison_of_runs_that_only_trained_shows_their_train_loss() -> None:
    shown = in_terminal(comparison_table("demo", {"a": [{"round": 1, "train_loss": 0.1}]}), 80)
    assert "0.100" in shown
    assert "chosen by ." not in " ".join(shown.split())


def ended(silos: float | None, site: float | None) -> list[dict[str, Any]]:
    return [{"round": 1}, {"round": 2, "validation_accuracy": silos, "test_accuracy": site}]


def test_the_table_has_the_last_rounds_accuracies() -> None:
    table = last_round_table("demo", {"fedsgd": ended(0.84, 0.33), "mine": ended(0.77, 0.64)})
    rows = [[cell.text for cell in row] for row in table.rows]
    assert rows == [["fedsgd", "2", "0.840", "-", "0.330"], ["mine", "2", "0.770", "-", "0.640"]]
