"""What a study found: means over the sites that have a score, comparisons, the best method."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hospitals import NO_SCORE, hospitals, made_result, study_table, with_score
from scipy.special import expit

from fedilc.evaluation.estimates import difference, estimate
from fedilc.evaluation.metrics import scores
from fedilc.evaluation.next_site import random_effects
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.settings import StudySettings


@pytest.fixture
def plan(tmp_path: Path) -> StudyPlan:
    data = study_table(tmp_path, hospitals(4, rows=20))
    settings = StudySettings(algorithms=("geometric", "fedavg"), references=False)
    return StudyPlan(data, settings)


def test_a_site_at_which_a_method_has_no_score_is_left_out_of_the_means(plan: StudyPlan) -> None:
    result = made_result(plan, {"geometric": 0.6, "fedavg": 0.5})
    result = with_score(result, "H1", "fedavg", "auroc", NO_SCORE)
    assert result.sites_with("auroc") == ["H0", "H2", "H3"]
    assert result.mean("geometric", "auroc").value == pytest.approx(0.6 + 0.005 / 3)
    assert result.interval("H1", "fedavg", "auroc").value is None
    assert result.interval("H1", "no such method", "auroc").value is None
    assert list(result.comparisons("auroc")["geometric"].by_site) == ["H0", "H2", "H3"]
    for site in result.sites:
        result = with_score(result, site, "fedavg", "auroc", NO_SCORE)
    assert result.comparisons("auroc") == {}
    assert result.mean("geometric", "auroc").value is None


def test_the_best_is_the_highest_or_the_lowest_and_of_equal_ones_the_reference(plan: StudyPlan) -> None:
    assert plan.reference == "fedavg"
    result = made_result(plan, {"geometric": 0.6, "fedavg": 0.5})
    assert (result.best("auroc"), result.best("log_loss")) == ("geometric", "fedavg")
    assert made_result(plan, {"geometric": 0.5, "fedavg": 0.5}).best("auroc") == "fedavg"


def test_scores_are_the_mean_over_seeds_and_methods_are_paired_by_example(
    tmp_path: Path, plan: StudyPlan
) -> None:
    plan = StudyPlan(study_table(tmp_path, hospitals(4, rows=60)), plan.settings)
    random = np.random.default_rng(0)
    one, two = (random.normal(size=(60, 1)) for _ in range(2))
    result = StudyResult.of(plan, {}, {"H0": {"fedavg": [one, two], "geometric": [one]}}, {})
    y = plan.data.labels["H0"]
    values = [float(scores("binary", y, each)["auroc"][0]) for each in (one, two)]
    found = result.score("H0", "fedavg", "auroc")
    assert found.seeds == pytest.approx(values)
    assert found.found.value == pytest.approx(np.mean(values))
    assert result.difference("H0", "geometric", "geometric", "auroc").variance == 0


def test_what_to_expect_at_the_next_site_is_random_effects_over_the_held_out_sites(tmp_path: Path) -> None:
    settings = StudySettings(algorithms=("fedavg", "geometric"), references=False)
    plan = StudyPlan(study_table(tmp_path, hospitals(6, rows=60)), settings)
    random = np.random.default_rng(0)
    outputs = {
        site: {
            name: [random.normal(size=(60, 1)) + y[:, None] for _ in range(2)] for name in settings.algorithms
        }
        for site, y in plan.data.labels.items()
    }
    result = StudyResult.of(plan, {}, outputs, {})
    found = [estimate("binary", "auroc", plan.data.labels[site], outputs[site]["fedavg"]) for site in outputs]
    expected = random_effects([one.value for one in found], [one.variance for one in found])
    ours = result.next_site("fedavg", "auroc")
    assert (ours.sites, ours.tau, ours.i2) == pytest.approx((6, expected.tau, expected.i2))
    assert (ours.reml_low, ours.reml_high) == pytest.approx(
        (expit(expected.next_low), expit(expected.next_high))
    )
    apart = [
        difference(
            *(
                estimate("binary", "brier", plan.data.labels[site], outputs[site][name], own_scale=True)
                for name in ("geometric", "fedavg")
            )
        )
        for site in outputs
    ]
    expected = random_effects([one.value for one in apart], [one.variance for one in apart])
    ours = result.next_difference("geometric", "brier")
    assert (ours.mean, ours.reml_low) == pytest.approx((expected.mean, expected.next_low))
