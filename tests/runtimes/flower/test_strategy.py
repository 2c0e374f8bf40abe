"""The strategy for your own ServerApp trains what `local` does, and refuses what cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from clinics import SETTINGS, locally, make_model, make_silo, same
from worked_examples import OTHERS

from fedilc import Federation, Silo, algorithms, train
from fedilc.errors import CheckpointError, ConfigError, FedILCWarning
from fedilc.runtimes.flower import FedILC

near = pytest.importorskip("near", reason="Flower is not installed: pip install 'fedilc[flower]'")


@pytest.mark.parametrize("algorithm", [*algorithms.PAPER, *OTHERS])
def test_the_strategy_trains_what_local_does_to_the_bit(algorithm: str) -> None:
    strategy = FedILC(algorithm=algorithm, model=make_model(), **SETTINGS)
    result = strategy.start(near.grid_of(3), num_rounds=10, timeout=10)
    assert same(result.weights, locally(3, 10, algorithm))


@pytest.mark.parametrize("average", ["ema", "last"])
def test_averaged_weights_are_those_of_local_and_what_evaluate_fn_is_given(average: str) -> None:
    strategy = FedILC(algorithm="fedavg", model=make_model(), average=average, **SETTINGS)
    given: list[Any] = []
    result = strategy.start(
        near.grid_of(3), num_rounds=6, timeout=10, evaluate_fn=lambda _, arrays: given.append(arrays)
    )
    expected = locally(3, 6, "fedavg", average=average)
    assert same(result.weights, expected)
    assert same(dict(given[-1].to_torch_state_dict()), expected)
    assert list(result.history[-1]["silos"]) == ["clinic-0", "clinic-1", "clinic-2"]
    assert same(dict(result.arrays.to_torch_state_dict()), result.weights)


def make_larger_silo(partition_id: int) -> Silo:
    generator = torch.Generator().manual_seed(partition_id)
    x = torch.randn(4 * (1 + partition_id), 5, generator=generator)
    return Silo(f"clinic-{partition_id}", x, (x[:, 0] + 0.3 * partition_id > 0).float())


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedcurv", "fishr-intra-geo"])
def test_silos_count_by_their_examples_as_local(algorithm: str) -> None:
    strategy = FedILC(algorithm=algorithm, model=make_model(), silo_weights="examples", **SETTINGS)
    result = strategy.start(near.grid_of(3, make_larger_silo), num_rounds=3, timeout=10)
    federation = Federation("near", [make_larger_silo(place) for place in range(3)])
    by_examples, equally = (
        train(
            federation, make_model(), algorithm, rounds=3, silo_weights=weights, **SETTINGS
        ).model.state_dict()
        for weights in ("examples", "equal")
    )
    assert same(result.weights, dict(by_examples))
    assert not same(result.weights, dict(equally))


def test_the_sizes_of_silos_elsewhere_are_noted_once_they_are_known() -> None:
    def unlike(partition_id: int) -> Silo:
        silo = make_silo(partition_id)
        return Silo(silo.name, silo.x.repeat(12, 1), silo.y.repeat(12)) if partition_id == 2 else silo

    strategy = FedILC(algorithm="fedsgd", model=make_model(), **SETTINGS)
    with pytest.warns(
        FedILCWarning, match="'clinic-0' has 8 .* 'clinic-2' has 96, and each silo counts eq"
    ) as said:
        strategy.start(near.grid_of(3, unlike), num_rounds=3, timeout=10)
    assert len(said) == 1


def test_the_first_weights_may_be_given_as_arrays_and_are_evaluated_before_the_first_round() -> None:
    from flwr.app import ArrayRecord, MetricRecord

    halves = {name: tensor / 2 for name, tensor in make_model().state_dict().items()}
    seen = {}

    def evaluate(number: int, arrays: Any) -> Any:
        seen[number] = {name: tensor.clone() for name, tensor in arrays.to_torch_state_dict().items()}
        return MetricRecord({"loss": float(number)})

    strategy = FedILC("fedsgd", model=make_model(), **SETTINGS)
    result = strategy.start(
        near.grid_of(2), ArrayRecord(halves), num_rounds=2, timeout=10, evaluate_fn=evaluate
    )
    assert same(seen[0], halves)
    assert same(seen[2], result.weights)
    assert not same(seen[1], seen[2])
    assert {number: dict(found) for number, found in result.evaluate_metrics_serverapp.items()} == {
        0: {"loss": 0.0},
        1: {"loss": 1.0},
        2: {"loss": 2.0},
    }


def test_arrays_of_another_network_are_refused() -> None:
    from flwr.app import ArrayRecord

    arrays = ArrayRecord({"0.weight": torch.zeros(2, 2)})
    with pytest.raises(ConfigError, match="initial_arrays are not weights of the model"):
        FedILC(model=make_model()).start(near.grid_of(2), arrays, timeout=10)


def test_another_configuration_does_not_go_on_in_the_same_folder(tmp_path: Path) -> None:
    FedILC(model=make_model(), **SETTINGS).start(
        near.grid_of(2), num_rounds=1, timeout=10, out=tmp_path / "run"
    )
    other = FedILC("fedsgd", model=make_model(), **SETTINGS)
    with pytest.raises(CheckpointError, match="algorithm was 'fishr-inter-geo' there and is 'fedsgd' here"):
        other.start(near.grid_of(2), num_rounds=2, timeout=10, out=tmp_path / "run")


def test_a_wrong_word_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fishr-inter-geo'"):
        FedILC("fishr-inter-geom", model=make_model())
    with pytest.raises(ConfigError, match="the key 'penalti' is unknown; did you mean 'penalty'"):
        FedILC(model=make_model(), penalti=3.0)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), "soon"])
def test_every_exchange_must_end(timeout: Any) -> None:
    with pytest.raises(ConfigError, match="is not a number of seconds"):
        FedILC(model=make_model()).start(near.grid_of(2), timeout=timeout)
