"""What a campaign comes to: the chosen rounds' numbers over seeds."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from campaigns import DOMAINS, LATER, SIX, campaign, history
from hypothesis import given
from hypothesis import strategies as st

from fedilc.evaluation.metrics import lower_is_better
from fedilc.evaluation.significance import spread
from fedilc.paper.campaign import Campaign, measurements, summarise, unequal_runs


def test_a_summary_has_mean_sample_deviation_and_values_of_every_algorithm_and_criterion() -> None:
    found = summarise(campaign())
    assert found.keys() == SIX.keys()
    for algorithm, losses in SIX.items():
        assert list(found[algorithm]) == ["oracle", "validation", "last"]
        for criterion, more in LATER.items():
            metric = found[algorithm][criterion]["test_loss"]
            assert metric.keys() == {"mean", "std", "seeds"}
            assert metric["seeds"] == [loss + more for loss in losses]
            assert metric["mean"] == pytest.approx(np.mean(metric["seeds"]))
            assert metric["std"] == pytest.approx(np.std(metric["seeds"], ddof=1))


def test_every_metric_is_taken_at_the_round_that_the_criterion_chooses() -> None:
    found = summarise(campaign({"fedsgd": [0.5]}))["fedsgd"]
    means = {
        name: {metric: one["mean"] for metric, one in metrics.items()} for name, metrics in found.items()
    }
    assert {name: metrics["round"] for name, metrics in means.items()} == {
        "oracle": 6,
        "validation": 7,
        "last": 8,
    }
    assert means["validation"] == pytest.approx(
        {
            "round": 7,
            "test_loss": 0.6,
            "test_accuracy": 0.65,
            "test_auroc": 0.7,
            "test_auprc": 0.6,
            "test_thresholded_auroc": 0.5,
            "test_thresholded_auprc": 0.55,
            "validation_loss": 0.3,
            "validation_accuracy": 0.75,
            "fairness_variance": 0.0006,
            "fairness_entropy": 2.184,
        }
    )


def test_sub_environments_have_their_accuracies_and_their_fairness() -> None:
    one = campaign({"fedsgd": [0.5, 0.7]}, domains=DOMAINS)
    found = summarise(one)["fedsgd"]["oracle"]
    assert one.domains == [f"domain_accuracy: silo-{place}" for place in ("1 10°", "1 25°", "2 -90°")]
    assert found["domain_accuracy: silo-1 25°"]["seeds"] == [0.5, pytest.approx(0.3)]
    assert found["domain_fairness_variance"]["mean"] == pytest.approx(0.0006)


def test_one_seed_has_no_deviation_and_a_summary_is_json() -> None:
    found = summarise(campaign({"fedsgd": [0.5]}))
    assert found["fedsgd"]["last"]["test_loss"] == {"mean": 0.7, "std": 0.0, "seeds": [0.7]}
    assert json.loads(json.dumps(found)) == found


def test_values_are_in_the_order_of_the_seeds_whatever_the_order_of_the_runs() -> None:
    runs = {2: history(0.2), 10: history(0.4), 0: history(0.1)}
    found = summarise(Campaign("demo", {"fedsgd": runs}))["fedsgd"]["oracle"]["test_loss"]
    assert found["seeds"] == [0.1, 0.2, 0.4]


def test_what_was_not_measured_is_left_out_and_so_is_a_criterion_that_cannot_choose() -> None:
    untested = [{"round": 1, "train_loss": 1.0, "validation_loss": 0.5, "validation_accuracy": None}]
    one = Campaign("demo", {"fedsgd": {0: untested}, "geometric": {0: []}, "fedcurv": {}})
    assert one.algorithms == ["fedsgd"]
    assert summarise(one) == {
        "fedsgd": {
            criterion: {
                "round": {"mean": 1.0, "std": 0.0, "seeds": [1.0]},
                "validation_loss": {"mean": 0.5, "std": 0.0, "seeds": [0.5]},
            }
            for criterion in ("validation", "last")
        }
    }


def test_a_seed_whose_number_is_missing_does_not_count_for_that_number() -> None:
    broken = [*history(0.5)[:2], history(0.5)[2] | {"test_loss": None, "test_accuracy": math.nan}]
    one = Campaign("demo", {"fedsgd": {0: broken, 1: history(0.5)}})
    assert one.values("fedsgd", "last", "test_loss") == {1: 0.7}
    assert one.values("fedsgd", "last", "test_accuracy") == {1: pytest.approx(0.55)}
    assert one.values("fedsgd", "last", "round") == {0: 8, 1: 8}
    assert one.values("geometric", "last", "round") == {}


@pytest.mark.parametrize("absent", ["fairness", "domain_fairness", "silos", "test_loss"])
@pytest.mark.parametrize("how", ["missing", "none"])
def test_a_record_without_some_part_has_the_other_parts(absent: str, how: str) -> None:
    record: dict[str, Any] = history(0.5, DOMAINS)[0]
    full = measurements(record)
    record.pop(absent) if how == "missing" else record.update({absent: None})
    kind = "domain_accuracy" if absent == "silos" else absent
    lost = {key for key in full if key.startswith(kind)}
    assert lost
    assert measurements(record) == {key: value for key, value in full.items() if key not in lost}


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_the_spread_is_numpys_mean_and_sample_deviation(values: list[float]) -> None:
    assert spread(values) == pytest.approx((np.mean(values), np.std(values, ddof=1)), abs=1e-6)


@pytest.mark.parametrize(
    ("metric", "lower"),
    [
        ("test_loss", True),
        ("validation_loss", True),
        ("domain_fairness_variance", True),
        ("test_accuracy", False),
        ("test_thresholded_auprc", False),
        ("fairness_entropy", False),
        ("domain_accuracy: silo-1 10°", False),
    ],
)
def test_losses_and_variances_are_better_low_and_all_else_high(metric: str, lower: bool) -> None:
    assert lower_is_better(metric) is lower


def test_runs_of_unequal_size_are_told_and_equal_ones_are_not() -> None:
    short = history(0.5)[:2]
    whole = {"fedsgd": {0: history(0.5), 1: history(0.6)}}
    assert unequal_runs(campaign()) is None
    assert unequal_runs(Campaign("demo", {})) is None
    sentence = unequal_runs(Campaign("demo", {**whole, "fedcurv": {0: short, 1: history(0.5)}}))
    assert sentence == (
        "The runs are of unequal size: fedsgd 2 seeds, 8 rounds; fedcurv 2 seeds, 7 to 8 rounds."
    )
    fewer = unequal_runs(Campaign("demo", {**whole, "fedcurv": {1: history(0.5)}}))
    assert fewer is not None
    assert fewer.endswith("fedsgd 2 seeds, 8 rounds; fedcurv 1 seed, 8 rounds.")
