"""Measurements are not identifiers, and counters are."""

from __future__ import annotations

import numpy as np
import pytest

from fedilc.data.checks.columns import tells_rows_apart


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.random.default_rng(0).normal(size=200), False),
        (np.round(np.random.default_rng(0).normal(250_000, 60_000, size=100)), False),
        (np.random.default_rng(0).integers(0, 90, 200).astype(float), False),
        (np.random.default_rng(0).permutation(200).astype(float), True),
        (np.cumsum(np.random.default_rng(0).integers(1, 1000, 200)).astype(float), True),
    ],
    ids=["measurements", "whole measurements", "ages", "shuffled numbers", "rising numbers"],
)
def test_measurements_are_no_identifiers(values: np.ndarray, expected: bool) -> None:
    assert tells_rows_apart(values) is expected
