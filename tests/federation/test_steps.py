"""What a reply may hold: names, shapes, dtypes and ranges, each refused in a sentence."""

from __future__ import annotations

import math

import pytest
import torch

from fedilc.errors import ProtocolError
from fedilc.federation.protocol import Range, check_metrics, check_numbers, check_tensors

METRICS = {"loss": Range(-10, 10), "accuracy": Range(0, 1)}


@pytest.mark.parametrize("value", [True, "1", None, math.nan, math.inf, -0.1, 1.1, 10**400])
def test_what_is_not_a_number_in_the_range_is_not_held(value: object) -> None:
    assert not Range(0, 1).holds(value)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, "sent tensors"),
        ({"gradient": {}}, "sent gradient tensors"),
        ({"gradient": {"w": torch.zeros(3)}}, r"of shape \(3,\), not as"),
        ({"gradient": {"w": torch.zeros(2, dtype=torch.float64)}}, "as torch.float64"),
    ],
)
def test_tensors_of_another_name_shape_or_dtype_are_refused(found: dict, words: str) -> None:
    expected = {"gradient": {"w": torch.empty(2, device="meta")}}
    check_tensors({"gradient": {"w": torch.zeros(2)}}, expected, "silo 'a'")
    with pytest.raises(ProtocolError, match=words):
        check_tensors(found, expected, "silo 'a'")


@pytest.mark.parametrize("numbers", [3, {}, {"loss": 1.0, "more": 1.0}, {"loss": 11.0}, {"loss": None}])
def test_numbers_of_another_name_or_range_are_refused(numbers: object) -> None:
    check_numbers({"loss": 1.0}, {"loss": Range(-10, 10)})
    with pytest.raises(ProtocolError):
        check_numbers(numbers, {"loss": Range(-10, 10)})


def test_metrics_may_be_undefined_absent_or_by_sub_domain() -> None:
    whole = {"loss": 0.5, "accuracy": None}
    for metrics in ({}, whole, whole | {"domains": {"ward": whole}}):
        check_metrics(metrics, METRICS)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ([], "not an object"),
        ({"loss": 0.5}, "its metrics are loss, not accuracy, loss"),
        ({"loss": 0.5, "accuracy": 2.0}, "not a number from 0 to 1"),
        ({"loss": 0.5, "accuracy": 0.5, "f1": 0.5}, "its metrics are accuracy, f1, loss, not accuracy, loss"),
        ({"loss": 0.5, "accuracy": 0.5, "domains": {"w" * 201: {}}}, "without a valid name"),
        (
            {"loss": 0.5, "accuracy": 0.5, "domains": {"ward": {"loss": 1.0}}},
            "of 'ward' are loss, not accuracy",
        ),
        ({"loss": 0.5, "accuracy": 0.5, "domains": dict.fromkeys(range(1001))}, "more than 1000"),
    ],
)
def test_other_metrics_are_refused(metrics: object, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        check_metrics(metrics, METRICS)


def test_a_step_without_metrics_takes_none() -> None:
    with pytest.raises(ProtocolError, match="although the step has none"):
        check_metrics({"loss": 0.5}, {})
