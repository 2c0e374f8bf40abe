"""Silos round what they send to a public unit, and sums of rounded numbers are whole numbers of units."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedilc import train
from fedilc.config import Options
from fedilc.config.options import SiloOptions
from fedilc.data import embedded_data
from fedilc.errors import ConfigError
from fedilc.federation.rounding import rounded_number, rounded_to
from fedilc.models import build_model
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.section import validated

DTYPES = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])


def slowly_rounded(value: float, unit: float, limit: float) -> float:
    """The nearest multiple, ties to even, by exact fractions."""
    return max(-limit, min(limit, float(round(Fraction(value) / Fraction(unit)) * Fraction(unit))))


@given(DTYPES, st.floats(-1e6, 1e6), st.integers(-60, 5), st.integers(6, 15))
def test_rounding_is_that_of_fractions_and_exact_in_every_dtype(
    dtype: torch.dtype, number: float, unit: int, limit: int
) -> None:
    values = torch.tensor([number], dtype=torch.float64).to(dtype)
    if not values.isfinite():
        return
    found, clipped = rounded_to(values, 2.0**unit, 2.0**limit)
    assert found.dtype == dtype
    assert float(found) == slowly_rounded(float(values), 2.0**unit, 2.0**limit)
    assert clipped == (abs(float(values)) > 2.0**limit)


def test_what_is_not_finite_stays_so() -> None:
    found, _ = rounded_to(torch.tensor([math.inf, -math.inf, math.nan]), 0.5, 8.0)
    assert found[0] == math.inf
    assert found[1] == -math.inf
    assert found[2].isnan()
    assert rounded_number(-1e300) == -(2.0**20)


def test_units_are_powers_of_two() -> None:
    for text, number in (("2^-40", 2.0**-40), (0.5, 0.5), ("0.25", 0.25), (1, 1.0)):
        assert validated(SiloOptions, {"sum_unit": text}).sum_unit == number
    for wrong in ("2^0.5", "3^2", 0.3, -0.5, 0, "unit", "2^999", True and 1e-6):
        with pytest.raises(ConfigError, match="powers of two"):
            validated(SiloOptions, {"sum_unit": wrong})
    with pytest.raises(ConfigError, match="no effect without"):
        validated(SiloOptions, {"sum_limit": 2})
    with pytest.raises(ConfigError, match="smaller than"):
        validated(SiloOptions, {"sum_limit": 2, "sum_unit": 4})


def test_a_manifest_without_a_unit_is_the_one_of_before() -> None:
    assert {"sum_unit", "sum_limit"} <= Manifest.model_fields.keys()
    assert Options(rounds=1, learning_rate=1).given("sum_unit", "sum_limit") == {}


@pytest.mark.parametrize("algorithm", ["fishr-inter-geo", "fedcurv", "fedavg"])
def test_a_run_with_a_fine_unit_is_close_to_the_exact_one_and_counts_what_it_clips(algorithm: str) -> None:
    federation = embedded_data.color_digits(0)
    model = build_model("mlp", federation.inputs, 1, 0, hidden=[4])
    found = {
        unit: train(federation, model, algorithm, rounds=2, learning_rate=0.1, sum_unit=unit, **limit)
        for unit, limit in ((None, {}), ("2^-40", {}), ("2^-20", {"sum_limit": "2^-10"}))
    }
    exact, fine, clipped = found.values()
    for name, tensor in exact.model.state_dict().items():
        torch.testing.assert_close(fine.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)
    assert all("clipped" not in record for record in (*exact.history, *fine.history))
    assert all(record["clipped"] > 0 for record in clipped.history)


def test_a_silo_clips_itself_before_it_rounds() -> None:
    federation = embedded_data.color_digits(0)
    model = build_model("mlp", federation.inputs, 1, 0, hidden=[4])
    found = train(
        federation,
        model,
        "fedsgd",
        rounds=1,
        learning_rate=1.0,
        optimizer="sgd",
        max_norm=1e-3,
        sum_unit="2^-40",
    )
    before, after = model.state_dict(), found.model.state_dict()
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    assert 0 < float(moved.norm()) < 1.001e-3
