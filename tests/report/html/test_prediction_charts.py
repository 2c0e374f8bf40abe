"""Charts of predictions: which curves there are, what they say, and what they are made from."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from html_pages import Page, macro
from sklearn.metrics import confusion_matrix

from fedilc.evaluation.calibration_curve import calibration_curve
from fedilc.report.html.prediction_charts import PredictionCharts, prediction_charts
from fedilc.studies.study.assessment import clinical_facts
from fedilc.studies.study.scoring import Asked, SiteRows, score_site

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


def outputs(site: str, method: str) -> list[np.ndarray]:
    rows = frame().filter(site=site, method=method)
    return [rows.filter(seed=seed)["output"].to_numpy()[:, None] for seed in range(SEEDS)]


def labels(site: str) -> np.ndarray:
    return frame().filter(site=site, method="fedavg", seed=0)["label"].to_numpy()


def drawn(loss: str, sites: list[str]) -> dict[str, object]:
    """The parts of study.json that charts are made from."""
    methods = ("fedavg", "geometric")
    places = {site: [site] for site in sites}
    if loss == "binary" and len(sites) > 1:
        places["all"] = sites
    found = {}
    for place, of in places.items():
        y = np.concatenate([labels(site) for site in of])
        given = {
            name: [np.concatenate(parts) for parts in zip(*(outputs(site, name) for site in of), strict=True)]
            for name in methods
        }
        asked = Asked(loss, 1, (), SEEDS, (0.2,))
        document = score_site(SiteRows(place, y, given, drawn=methods), asked)
        found[place] = clinical_facts(loss, document, {name: name for name in methods})
    together = found.pop("all", None)
    facts = {key: {site: of.get(key, {}) for site, of in found.items()} for key in ("calibration", "drawn")}
    return {**study(loss), "held_out": sites, **facts, **({"together": together} if together else {})}


@pytest.fixture
def charts() -> PredictionCharts:
    found = prediction_charts(drawn("binary", list(SIZES)))
    assert found is not None
    return found


def test_calibration_is_the_smooth_curve_of_all_sites_and_of_each_with_enough_events(
    charts: PredictionCharts,
) -> None:
    assert [chart.title for chart in charts.calibration.charts] == ["all held-out sites", "north", "south"]
    assert charts.calibration.missing == ("tiny (5 events, fewer than 10)",)
    curve = calibration_curve(labels("north"), outputs("north", "geometric"))
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


def test_quantities_have_groups_alone() -> None:
    found = prediction_charts(drawn("regression", list(SIZES)))
    assert found is not None
    assert not found.risks
    assert not found.decisions
    assert not found.calibration.smooth
    assert [chart.title for chart in found.calibration.charts] == list(SIZES)


def test_one_held_out_site_has_no_chart_of_all() -> None:
    found = prediction_charts(drawn("binary", ["south"]))
    assert found is not None
    assert [chart.title for chart in found.risks] == ["south"]
