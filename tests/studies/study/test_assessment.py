"""What reviewers ask of a study: calibration, net benefit, and choices at the edge of what was offered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hospitals import hospitals, study_table
from hypothesis import given
from hypothesis import strategies as st
from slow_clinical import counted_net_benefit

from fedilc.evaluation.calibration_curve import calibration_curve
from fedilc.studies.study.assessment import NOT_TOGETHER, assessment, clinical_facts, edge_notes, edges
from fedilc.studies.study.choice import Choice
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.scoring import Asked, SiteRows, score_site
from fedilc.studies.study.settings import StudySettings
from fedilc.studies.study.site_scores import SiteScores


@pytest.fixture
def result(tmp_path: Path) -> StudyResult:
    data = study_table(tmp_path, hospitals(4, rows=120))
    settings = StudySettings(
        algorithms=("fedavg", "fishr-inter-geo"), references=False, thresholds=(0.3, 0.6)
    )
    plan = StudyPlan(data, settings)
    random = np.random.default_rng(0)
    outputs = {
        site: {name: [y[:, None] + random.normal(size=(len(y), 1)) - 0.5] for name in settings.algorithms}
        for site, y in data.labels.items()
    }
    return StudyResult.of(plan, {}, outputs, {})


def test_numbers_are_those_of_each_site_and_of_all_together(result: StudyResult) -> None:
    facts = json.loads(json.dumps(assessment(result), allow_nan=False))
    sites = result.plan.held_out
    assert list(facts["calibration"]) == list(sites)
    together = facts["together"]
    y = np.concatenate([result.plan.data.labels[site] for site in sites])
    outputs = np.concatenate([result.outputs[site]["fedavg"][0] for site in sites])
    risks = 1 / (1 + np.exp(-outputs[:, 0]))
    found = together["calibration"]["fedavg"]
    assert found["oe_ratio"]["value"] == pytest.approx(y.sum() / risks.sum())
    curve = calibration_curve(y, [outputs])
    assert curve is not None
    assert found["ici"]["value"] == pytest.approx(curve.ici)
    assert facts["net_benefit"]["thresholds"] == [0.3, 0.6]
    for place, threshold in enumerate((0.3, 0.6)):
        for method, given_risks in (("fedavg", risks), ("treat all", np.ones(len(y)))):
            one = together["net_benefit"][method][place]
            assert one["value"] == pytest.approx(counted_net_benefit(list(y), list(given_risks), threshold))


def test_a_method_that_some_site_lacks_is_not_in_the_numbers_of_all(result: StudyResult) -> None:
    outputs = {site: dict(of) for site, of in result.outputs.items()}
    del outputs[result.plan.held_out[1]]["fishr-inter-geo"]
    found = assessment(StudyResult.of(result.plan, {}, outputs, {}))
    assert list(found["together"]["calibration"]) == ["fedavg"]


def test_without_the_rows_of_all_sites_there_is_a_sentence_instead(result: StudyResult) -> None:
    documents = {site: SiteScores.read(one.to_bytes()) for site, one in result.sites.items()}
    elsewhere = StudyResult(result.plan, {}, documents, {})
    found, here = assessment(elsewhere), assessment(result)
    assert found.pop("together") == {"reason": NOT_TOGETHER}
    here.pop("together")
    assert found == here


def of_one_site(y: np.ndarray, z: np.ndarray) -> dict[str, Any]:
    document = score_site(SiteRows("H0", y, {"fedavg": [z[:, None]]}), Asked("binary", 1, (), 1, (0.3,)))
    return clinical_facts("binary", document, {"fedavg": "fedavg"})["calibration"]["fedavg"]


def test_the_interval_of_o_to_e_covers_the_ratio_of_the_population() -> None:
    random, covered = np.random.default_rng(0), 0
    for _ in range(1000):
        z = random.normal(-1, 1, 200)
        y = (random.random(200) < 1.2 / (1 + np.exp(-z)).clip(1.2)).astype(float)
        found = of_one_site(y, z)["oe_ratio"]
        covered += found["low"] <= 1.2 <= found["high"]
    assert 0.93 <= covered / 1000 <= 0.98


@given(st.integers(0, 9), st.integers(10, 60))
def test_below_ten_events_nothing_is_estimable(events: int, others: int) -> None:
    y = np.array([1.0] * events + [0.0] * others)
    found = of_one_site(y, np.linspace(1, -1, len(y)))
    for one in found.values():
        assert one["value"] is None
        assert "event" in one["reason"]


def test_choices_at_an_edge_are_counted_and_told_if_most_sites_are_there(result: StudyResult) -> None:
    plan = result.plan
    inside = {"local_learning_rate": 0.03, "learning_rate": 0.01, "penalty_weight": 1.0}
    outside = inside | {"local_learning_rate": 0.1}
    choices = {
        site: {"fedavg": Choice(outside if place else inside, 100 if place == 3 else 60, 0.5, {})}
        for place, site in enumerate(plan.held_out)
    }
    found = edges(plan, choices)
    assert found == [
        {
            "method": "fedavg",
            "setting": "local_learning_rate",
            "edge": "highest",
            "value": 0.1,
            "sites": 3,
            "of": 4,
        },
        {"method": "fedavg", "setting": "rounds", "edge": "highest", "value": 100.0, "sites": 1, "of": 4},
    ]
    assert edge_notes(found) == [
        "fedavg chose the highest local_learning_rate offered (0.1) for 3 of 4 held-out sites; "
        "higher ones may be better"
    ]


def test_the_lowest_value_that_there_is_is_no_edge(result: StudyResult) -> None:
    plan = replace(result.plan, settings=replace(result.plan.settings, network_decays=(0.0, 0.01)))
    for decay, found in ((0.0, []), (0.01, [("highest", 0.01)])):
        choice = Choice({"weight_decay": decay}, 7, 0.5, {})
        edge = edges(plan, {site: {"fishr-inter-geo": choice} for site in plan.held_out})
        assert [(one["edge"], one["value"]) for one in edge if one["setting"] == "weight_decay"] == found


def test_a_setting_with_one_value_has_no_edge(result: StudyResult) -> None:
    plan = replace(result.plan, settings=replace(result.plan.settings, local_learning_rates=(0.1,)))
    choices = {site: {"fedavg": Choice({"local_learning_rate": 0.1}, 7, 0.5, {})} for site in plan.held_out}
    assert edges(plan, choices) == []
