"""The average of weights against weighted sums in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedilc.federation.averaging import WeightAverage


def averages(
    average: WeightAverage, path: list[float], dtype: torch.dtype
) -> tuple[list[float], list[float]]:
    """The average after each round, if w takes this path; and w itself, as it is put back."""
    parameters, found, plain = {"w": torch.zeros(1, dtype=dtype)}, [], []
    for number, value in enumerate(path, 1):
        average.leave(parameters)
        plain.append(float(parameters["w"]))
        parameters["w"].fill_(value)
        average.enter(number, parameters)
        found.append(float(parameters["w"]))
    return found, plain


paths = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40)


@given(paths, st.floats(0.05, 0.999))
def test_ema_is_the_mean_of_all_rounds_with_weights_that_decay(path: list[float], decay: float) -> None:
    found, plain = averages(WeightAverage("ema", len(path), decay=decay), path, torch.float64)
    for t, value in enumerate(found, 1):
        weights = decay ** np.arange(t - 1, -1, -1, dtype=np.float64)
        assert value == pytest.approx(np.average(path[:t], weights=weights), abs=1e-9)
    assert plain == [0.0, *path[:-1]]


@given(paths, st.floats(0.01, 1))
def test_last_is_the_plain_mean_of_a_share_of_the_rounds(path: list[float], share: float) -> None:
    found, plain = averages(WeightAverage("last", len(path), share=share), path, torch.float64)
    taken = max(1, round(share * len(path)))
    start = len(path) - taken
    assert found[:start] == path[:start]
    for t in range(start + 1, len(path) + 1):
        assert found[t - 1] == pytest.approx(np.mean(path[start:t]), abs=1e-9)
    assert plain == [0.0, *path[:-1]]


@given(paths)
def test_without_an_average_weights_stay_as_they_are(path: list[float]) -> None:
    assert averages(WeightAverage(), path, torch.float32) == (path, [0.0, *path[:-1]])


@given(paths, st.floats(0.5, 0.99))
def test_an_average_in_float32_is_the_one_in_float64_to_rounding(path: list[float], decay: float) -> None:
    short, long = (
        averages(WeightAverage("ema", len(path), decay=decay), path, dtype)[0]
        for dtype in (torch.float32, torch.float64)
    )
    assert short == pytest.approx(long, abs=1e-4)
