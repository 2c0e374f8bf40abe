"""Fairness numbers agree with NumPy and SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from fedilc.evaluation import fairness

accuracies = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8)


@given(accuracies)
def test_fairness_is_numpys_variance_and_scipys_entropy(values: list[float]) -> None:
    found = fairness({f"silo-{number}": value for number, value in enumerate(values)})
    uniform = np.full(len(values), 1 / len(values))
    assert found["variance"] == pytest.approx(np.var(values), abs=1e-12)
    assert found["entropy"] == pytest.approx(entropy(values), abs=1e-12)
    assert found["divergence"] == pytest.approx(entropy(values, uniform), abs=1e-12)
    assert found["worst_accuracy"] == min(values)


@pytest.mark.parametrize("silos", [1, 2, 5, 12, 13])
def test_equal_accuracies_are_perfectly_fair_and_never_better(silos: int) -> None:
    found = fairness({f"silo-{number}": 0.7 for number in range(silos)})
    assert found["variance"] == pytest.approx(0)
    assert found["entropy"] == pytest.approx(math.log(silos))
    assert 0 <= found["divergence"] < 1e-12


def test_a_silo_without_any_right_answer_adds_nothing_to_the_entropy() -> None:
    found = fairness({"a": 0.0, "b": 0.5, "c": 0.5})
    assert found["entropy"] == pytest.approx(math.log(2))
    assert (found["worst_silo"], found["worst_accuracy"]) == ("a", 0.0)


def test_silos_that_are_all_wrong_are_even() -> None:
    found = fairness({"a": 0.0, "b": 0.0})
    assert (found["variance"], found["divergence"]) == (0, 0)


def test_the_first_of_several_worst_silos_is_named() -> None:
    assert fairness({"a": 0.9, "b": 0.4, "c": 0.4})["worst_silo"] == "b"
