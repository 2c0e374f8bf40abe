"""The run's configuration of the ServerApp: what it may change, and what it refuses."""

from __future__ import annotations

import math

import pytest

from fedilc.errors import ConfigError
from fedilc.runtimes.flower.server_app import read_changes, run_experiment


@pytest.mark.parametrize("key", ["round", "data", "penalty_weight"])
def test_an_unknown_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"'{key}' is not a key of the run's configuration; use alg"):
        read_changes({key: 1})


def test_the_data_cannot_be_changed_for_the_server_alone() -> None:
    with pytest.raises(ConfigError, match="would change the data for the server alone"):
        read_changes({"set": "rounds=3 data.flips=[0.1]"})


@pytest.mark.parametrize("given", [-1, math.inf, math.nan, "soon"])
def test_every_exchange_needs_a_timeout(given: object) -> None:
    with pytest.raises(ConfigError, match="is not a number of seconds above 0"):
        run_experiment(None, "color-digits", {"timeout": given})
