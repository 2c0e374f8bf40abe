"""Charts of predictions: which curves there are, what they say, and what they are made from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from html_pages import Page, macro
from sklearn.metrics import confusion_matrix

from fedilc.evaluation.calibration_curve import calibration_curve
from fedilc.report.html.prediction_charts import PredictionCharts, prediction_charts

SEEDS, SIZES = 2, {"north": 120, "south": 200, "tiny": 30}


def study(loss: str = "binary") -> dict[str, object]:
    means = {"fedavg": {"auroc": {"value": 0.7}}, "geometric": {"auroc": {"value": 0.8}}}
    return {
        "loss": loss,
        "held_out": list(SIZES),
        "methods": ["fedavg", "geometric", "pooled"],
        "settings": {"algorithms": ["fedavg", "geometric"], "seeds": SEEDS},
        "headline": "fedavg",
        "reference": "geometric",
        "deciding_metric": "auroc",
        "higher_is_better": ["auroc"],
        "means": means,
    }


def frame() -> pl.DataFrame:
    random, parts = np.random.default_rng(0), []
    for site, rows in SIZES.items():
        z = random.normal(size=rows)
        y = (random.random(rows) < 1 / (1 + np.exp(-z))).astype(float)
        if site == "tiny":
            y[:] = 0.0
            y[:5] = 1.0
        for method, slope in (("fedavg", 1.0), ("geometric", 2.0)):
            for seed in range(SEEDS):
                about = {"site": site, "method": method, "seed": seed}
                made = {"row": np.arange(1, rows + 1), "label": y, "output": slope * z + 0.1 * seed}
                parts.append(
                    pl.DataFrame(made).select(*(pl.lit(v).alias(k) for k, v in about.items()), pl.all())
                )
    return pl.concat(parts)


@pytest.fixture
def charts(tmp_path: Path) -> PredictionCharts:
    frame().sample(fraction=1, shuffle=True, seed=0).write_parquet(tmp_path / "predictions.parquet")
    found = prediction_charts(tmp_path, study())
    assert found is not None
    return found


def test_calibration_is_the_smooth_curve_of_all_sites_and_of_each_with_enough_events(
    charts: PredictionCharts,
) -> None:
    assert [chart.title for chart in charts.calibration.charts] == ["all held-out sites", "north", "south"]
    assert charts.calibration.missing == ("tiny (5 events, fewer than 10)",)
    rows = frame().filter(site="north", method="geometric")
    outputs = [rows.filter(seed=seed)["output"].to_numpy() for seed in range(SEEDS)]
    curve = calibration_curve(rows.filter(seed=0)["label"].to_numpy(), outputs)
    assert curve is not None
    chart = charts.calibration.charts[1]
    np.testing.assert_allclose(chart.lines[1].y, curve.observed)
    np.testing.assert_allclose(chart.lines[1].low or (), curve.low)
    assert f"geometric {curve.ici:.3f}" in chart.alt
    drawn = Page(macro("charts", "smooth", chart))
    classes = [one["class"] for one in drawn.attributes("path", "circle")]
    assert {"band m0", "curve m0", "band m1", "curve m1", "group m0", "group m1"} <= set(classes)


def test_risks_are_shares_of_all_examples_and_sum_to_one(charts: PredictionCharts) -> None:
    assert [chart.title for chart in charts.risks] == ["all held-out sites", *SIZES]
    for chart in charts.risks:
        assert sum(up + down for _, _, up, down in chart.bars) == pytest.approx(1)
    rows = frame().filter(site="south", method="fedavg")
    share = float((rows["label"] == 1).mean())
    assert sum(up for _, _, up, _ in charts.risks[2].bars) == pytest.approx(share)
    assert "events median" in charts.risks[2].alt
    drawn = Page(macro("charts", "histogram", charts.risks[2]))
    assert not any(text.startswith("-") for text in drawn.all("text"))


def test_a_decision_curve_is_the_net_benefit_by_the_confusion_matrix(charts: PredictionCharts) -> None:
    chart = next(one for one in charts.decisions if one.title == "south")
    assert [line.label for line in chart.lines] == ["fedavg", "geometric", "treat all"]
    rows = frame().filter(site="south", method="fedavg")
    place = next(i for i, at in enumerate(chart.lines[0].x) if abs(at - 0.4) < 1e-9)
    expected = []
    for seed in range(SEEDS):
        one = rows.filter(seed=seed)
        risks = 1 / (1 + np.exp(-one["output"].to_numpy()))
        _, false, _, true = confusion_matrix(one["label"].to_numpy(), risks >= 0.4).ravel()
        expected.append((true - false * 0.4 / 0.6) / len(one))
    assert chart.lines[0].y[place] == pytest.approx(np.mean(expected))
    low = chart.y[0]
    assert all(value >= low for line in chart.lines for value in line.y)
    assert "treat none 0" in chart.alt
    tiny = next(one for one in charts.decisions if one.title == "tiny")
    assert tiny.lines[0].low is None


def test_quantities_have_groups_alone(tmp_path: Path) -> None:
    frame().write_parquet(tmp_path / "predictions.parquet")
    found = prediction_charts(tmp_path, study("regression"))
    assert found is not None
    assert not found.risks
    assert not found.decisions
    assert not found.calibration.smooth
    assert [chart.title for chart in found.calibration.charts] == list(SIZES)


def test_one_held_out_site_has_no_chart_of_all(tmp_path: Path) -> None:
    frame().write_parquet(tmp_path / "predictions.parquet")
    found = prediction_charts(tmp_path, {**study(), "held_out": ["south"]})
    assert found is not None
    assert [chart.title for chart in found.risks] == ["south"]
