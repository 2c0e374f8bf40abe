"""Cells of tables: numbers as the paper prints them, with all digits beside them for CSV."""

from __future__ import annotations

import pytest
from campaigns import campaign
from hypothesis import given
from hypothesis import strategies as st

from fedilc.evaluation.significance import paired_test
from fedilc.paper.claims import PaperNumber, distance_cell, our_cell, paper_cell
from fedilc.report.tables import NOTHING, mean_cell, p_text, verdict_cells, with_best


def test_a_mean_has_a_deviation_if_there_are_several_values() -> None:
    assert mean_cell([]) is NOTHING
    assert mean_cell([0.25]).parts == ("0.25", "")
    assert (mean_cell([0.1, 0.3], 10.0).text, mean_cell([0.1, 0.3], 10.0).parts) == (
        "2.000±1.414",
        ("2", "1.41421"),
    )


def test_our_cell_says_if_seeds_lack_the_number() -> None:
    one = campaign({"fedsgd": [0.5, 0.7]})
    assert our_cell(one, "fedsgd", "oracle", "test_loss").text == "0.600±0.141"
    assert our_cell(one, "fedsgd", "oracle", "no such metric") is NOTHING


def test_a_papers_number_is_scaled_and_a_missing_one_is_a_dash() -> None:
    assert paper_cell(PaperNumber(0.0005, 0.0001), 1000.0).text == "0.500±0.100"
    assert paper_cell(None) is NOTHING


@given(st.lists(st.floats(0.001, 100), min_size=2, max_size=6), st.booleans())
def test_the_best_as_it_is_printed_is_bold_ties_included(values: list[float], lower: bool) -> None:
    cells = with_best({str(n): mean_cell([value]) for n, value in enumerate(values)}, lower)
    best = (min if lower else max)(float(cell.text) for cell in cells.values())
    assert all(cell.bold == (float(cell.text) == best) for cell in cells.values())


def test_one_value_alone_is_not_the_best() -> None:
    assert not any(cell.bold for cell in with_best({"a": mean_cell([0.5]), "b": NOTHING}, True).values())


@pytest.mark.parametrize(
    ("ours", "lower", "text", "reading"),
    [
        (0.5, True, "+0.0", "within two"),
        (0.8, True, "+3.0!", "worse"),
        (0.8, False, "+3.0", "better"),
        (0.2, True, "-3.0", "better"),
        (0.2, False, "-3.0!", "worse"),
    ],
)
def test_the_distance_from_the_paper_is_marked_if_ours_is_much_worse(
    ours: float, lower: bool, text: str, reading: str
) -> None:
    cell = distance_cell([ours], PaperNumber(0.5, 0.1), lower)
    assert (cell.text, cell.parts[1]) == (text, reading)
    assert distance_cell([ours], None, lower) is NOTHING


def test_a_test_is_its_verdict_and_two_p_values_and_below_three_seeds_neither() -> None:
    assert verdict_cells(None) == (NOTHING, NOTHING)
    verdict, p = verdict_cells(paired_test([0.5], [0.6]))
    assert (verdict.text, p) == ("not tested", NOTHING)
    verdict, p = verdict_cells(paired_test([0.50, 0.52, 0.51], [0.56, 0.57, 0.58]))
    assert verdict.text == "better"
    assert p.text == f"{p_text(float(p.parts[0]))}/.250"
