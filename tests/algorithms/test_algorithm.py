"""An algorithm is its parts: names are normalised, options of a run replace parts, and records say which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedilc import Algorithm, LocalSteps, algorithms
from fedilc.aggregation import Mean
from fedilc.config import Options
from fedilc.errors import ConfigError


def options(**given: object) -> Options:
    return Options(rounds=1, learning_rate=0.1, **given)


def test_names_of_parts_have_one_spelling() -> None:
    assert Algorithm(intra=None, inter="wgm", penalty="Fishr") == Algorithm(
        intra="whole silo", inter="geometric", penalty="fishr"
    )


def test_local_steps_are_one_unless_counted_and_epochs_count_batches() -> None:
    assert LocalSteps().count(examples=7) == 1
    assert LocalSteps(epochs=2, batch_size=100).count(examples=7) == 2
    assert LocalSteps(epochs=2, batch_size=3).count(examples=7) == 6
    assert LocalSteps(epochs=2, batch_size="all").count(examples=7) == 2


@pytest.mark.parametrize(
    ("given", "part", "expected"),
    [
        ({"silo_weights": "examples"}, "silo_weights", "examples"),
        ({"penalty": "coral"}, "penalty", "coral"),
        ({"optimizer": "sgd"}, "optimizer", "sgd"),
        ({"optimizer_options": {"eps": 1.0}}, "optimizer_options", {"eps": 1.0}),
        ({"local_epochs": 2, "batch_size": 5}, "update", LocalSteps(epochs=2, batch_size=5)),
        ({"batch_size": 5}, "update", "gradient"),
        ({}, "penalty", None),
    ],
)
def test_options_of_a_run_replace_parts(given: dict[str, object], part: str, expected: object) -> None:
    assert getattr(Algorithm().configured(options(**given)), part) == expected


def test_another_optimiser_drops_the_options_of_the_algorithms_own() -> None:
    entry = Algorithm(optimizer="adam", optimizer_options={"eps": 1e-3})
    assert entry.configured(options(optimizer="sgd")).optimizer_options == {}
    assert entry.configured(options()) == entry


def test_local_options_change_the_local_steps_that_an_algorithm_has() -> None:
    local = algorithms.get("fedprox").configured(options(proximal=0.5, local_steps=3)).local
    assert local == LocalSteps(steps=3, batch_size=32, proximal=0.5)


def test_a_full_batch_has_a_name_where_the_algorithm_has_batches_of_its_own() -> None:
    local = algorithms.get("fedavg").configured(options(batch_size="all")).local
    assert local is not None
    assert [local.batch(7), LocalSteps().batch(7), LocalSteps(batch_size=3).batch(7)] == [7, 7, 3]
    for wrong in ("every", 0):
        with pytest.raises(ConfigError, match="batch_size"):
            LocalSteps(batch_size=wrong)


def test_a_record_holds_what_differs_from_the_usual() -> None:
    assert Algorithm().describe() == {"intra": None, "inter": {"name": "mean"}, "penalty": None}
    found = Algorithm(update=LocalSteps(steps=2), optimizer="sgd").describe()
    assert (found["update"]["steps"], found["optimizer"]) == (2, "sgd")
    assert "silo_weights" not in found


@pytest.mark.parametrize(
    ("entry", "adds_up"),
    [
        (Algorithm(), True),
        (Algorithm(inter=Mean()), True),
        (Algorithm(inter="geometric"), False),
        (Algorithm(silo_weights="examples"), False),
        (Algorithm(weights="examples"), False),
        (Algorithm(update=LocalSteps(), inter="geometric"), True),
    ],
)
def test_a_silo_adds_up_for_a_plain_mean_or_with_local_steps(entry: Algorithm, adds_up: bool) -> None:
    assert entry.adds_up_in_silo is adds_up


def test_weights_is_another_name_of_silo_weights_in_the_constructor() -> None:
    old = Algorithm(weights="examples")
    assert old == Algorithm(silo_weights="examples")
    assert replace(old, penalty="vrex").silo_weights == "examples"
    assert replace(old, silo_weights="equal").silo_weights == "equal"
