"""Charts as SVG: what they say to those who cannot see them, and what they leave out."""

from __future__ import annotations

import math

import pytest
from html_pages import Page, macro

from fedilc.evaluation.intervals import Interval
from fedilc.report.html.charts import (
    Line,
    Panel,
    Scale,
    agreement_charts,
    band,
    common_limits,
    curves,
    reliability,
)


def label(chart: str) -> str:
    return Page(chart).attributes("svg")[0]["aria-label"] or ""


def test_a_band_is_the_mean_and_range_over_the_rounds_that_all_have() -> None:
    line = band("a", 1, [{1: 1.0, 2: 2.0, 3: None}, {2: 4.0, 3: 5.0}])
    assert line == Line("a", 1, [2], [3.0], [2.0], [4.0])
    assert band("a", 1, [{1: 0.5}]) == Line("a", 1, [1], [0.5])
    assert band("a", 1, [{1: 0.5}, {2: 0.5}]) is None
    assert band("a", 1, []) is None


def test_curves_leave_out_what_is_not_finite_and_more_points_than_can_be_seen() -> None:
    values = [1.0 / (n + 1) for n in range(1000)]
    values[3] = math.inf
    chart = curves("Loss", "round", [Line("a", 0, list(range(1000)), values)])
    drawn = macro("charts", "curves", chart)
    assert label(drawn) == "Loss by round, from 4 to 999. At the end: a 0.001."
    (path,) = [a["d"] or "" for a in Page(drawn).attributes("path") if a["class"] == "curve m0"]
    assert 150 < path.count("L") <= 200


def test_one_point_is_a_dot_and_limits_are_a_band() -> None:
    chart = curves("Loss", "round", [Line("a", 9, [1], [0.5], [0.4], [0.6])])
    drawn = Page(macro("charts", "curves", chart))
    classes = [a["class"] for a in drawn.attributes("path", "circle")]
    assert {"band m1", "curve m1", "point m1"} <= set(classes)  # nine methods share eight colours


def test_reliability_says_how_far_the_points_are_from_the_diagonal() -> None:
    line = Line("a", 0, [0.25, 0.75], [0.35, 0.65], [0.2, 0.5], [0.5, 0.8])
    chart = reliability("north", [line], ("predicted", "observed"), (0.0, 1.0))
    said = "north: observed against predicted. Mean distance from the diagonal: a 0.10."
    drawn = macro("charts", "reliability", chart)
    assert label(drawn) == said
    assert len([a for a in Page(drawn).attributes("path") if a["class"] == "whisker m0"]) == 2


def test_intervals_are_in_numbers_beside_their_marks() -> None:
    rows = [
        ("a", 0, Interval(0.5, 0.4, 0.6)),
        ("b", 1, Interval(0.5, None, None)),
        ("c", 2, Interval(None, None, None)),
    ]
    found = Page(macro("charts", "intervals", Panel("AUROC", rows, Scale(0.0, 1.0))))
    assert found.all("caption") == ["AUROC"]
    assert found.all("td")[1::2] == ["0.500 [0.400, 0.600]", "0.500", "-"]


@pytest.mark.parametrize(
    ("found", "ends"),
    [([(0.52, 0.492, 0.581)], (0.49, 0.585)), ([], (0.0, 1.0)), ([(0.5, None, None)], (0.0, 1.0))],
)
def test_common_limits_are_round_and_hold_all(
    found: list[tuple[float, ...]], ends: tuple[float, float]
) -> None:
    assert common_limits(Interval(*one) for one in found) == pytest.approx(ends)


def test_agreement_is_a_chart_per_method_in_the_order_of_rounds() -> None:
    charts = agreement_charts({"geometric": {"10": {"w": 1.0}, "2": {"w": 0.5}}})
    drawn = macro("charts", "agreement", charts)
    assert label(drawn) == "geometric, from round 2 to 10: w 0.50 to 1.00."
    assert [a["fill-opacity"] for a in Page(drawn).attributes("rect")] == ["0.50", "0.95"]
    assert agreement_charts({}) == []


def test_a_point_lies_where_its_axes_say() -> None:
    chart = curves("Loss", "round", [Line("a", 0, [1, 3], [0.0, 1.0])])
    assert chart.place(2, 0.5) == ((chart.left + chart.right) / 2, (8 + chart.bottom) / 2)
    assert chart.place(1, chart.y[0]) == (chart.left, chart.bottom)
    assert Scale(-1.0, 3.0).share(0.0) == 25.0
    assert Scale(-1.0, 3.0).share(9.0) == 100.0


def test_the_legend_names_every_line() -> None:
    assert Page(macro("charts", "legend", [("a", 0), ("<b>", 1)])).all("li") == ["a", "<b>"]
