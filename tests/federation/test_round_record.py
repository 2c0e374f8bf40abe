"""The record of a round: losses with the weights of updates, and what was clipped."""

from __future__ import annotations

import pytest

from fedilc.federation.round_record import mean_loss, silo_records, training_record
from fedilc.federation.silo_weights import Examples, SiloWeights

ANSWERS = {
    "a": {"loss": 1.0, "examples": 30, "distance": 0.5},
    "b": {"loss": 4.0, "examples": 10, "distance": 1.5},
}


def test_the_loss_is_a_mean_with_the_weights_of_the_updates() -> None:
    assert mean_loss(ANSWERS, SiloWeights()) == 2.5
    assert mean_loss(ANSWERS, Examples()) == 1.75


@pytest.mark.parametrize(("reduction", "penalty"), [("mean", 1.0), ("sum", 2.0)])
def test_the_penalty_is_a_mean_or_a_sum_of_distances(reduction: str, penalty: float) -> None:
    record = training_record(7, ANSWERS, SiloWeights(), 3.0, reduction)
    assert record == {"round": 7, "train_loss": 2.5, "penalty": penalty, "penalty_weight": 3.0}


def test_a_round_without_a_penalty_records_none() -> None:
    assert "penalty" not in training_record(7, ANSWERS, SiloWeights(), 0.0, "mean")


def test_the_norm_of_a_clipped_update_is_recorded() -> None:
    records = silo_records(ANSWERS, {"a": 9.0, "b": 2.0}, max_norm=5.0)
    assert records["a"] == {"examples": 30, "train_loss": 1.0, "clipped_from": 9.0}
    assert records["b"] == {"examples": 10, "train_loss": 4.0}
