"""Stacked runs against the single run, entry by entry of the catalogue."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from worked_examples import OWN_PENALTY

from fedilc import Federation, Silo, train
from fedilc.algorithms import CATALOGUE
from fedilc.api import train_many
from fedilc.errors import ConfigError, FedILCError
from fedilc.models import build_model
from fedilc.training.stack import Moment, StackedRun, stack_key, train_stack

NEWTON = ("logistic", "ridge")
ROBUST = ("trimmed-mean", "median")  # they need three silos
SIZES = {"a": 70, "b": 45, "c": 90}
# Of names of silos, learning rate, penalty weight, seed and inputs: what the models of a stack may differ in.
MODELS: list[tuple[str, float, float, int, int]] = [
    *[("abc", 0.1, 1.0, 0, 6), ("abc", 0.03, 5.0, 1, 6), ("abc", 0.1, 2.0, 0, 5), ("abc", 0.2, 2.0, 0, 5)],
    *[("ab", 0.1, 1.0, 0, 6), ("bc", 0.2, 1.0, 3, 4)],
]


def federation(names: str, width: int, loss: str, dtype: torch.dtype, shift: float = 0.0) -> Federation:
    """Return silos with tables of their own for these names, as after another preprocessing."""
    silos = []
    for name in names:
        random = torch.Generator().manual_seed(ord(name))
        x = torch.randn(SIZES[name], 6, dtype=torch.float64, generator=random)
        noise = torch.randn(len(x), dtype=torch.float64, generator=random)
        y = x[:, 1] + noise if loss == "regression" else (x[:, 0] + noise > 0).double()
        silos.append(Silo(name, ((1 + shift) * x[:, :width] - shift).to(dtype), y))
    return Federation("stack", silos, loss=loss)


def stack_of(name: str, dtype: torch.dtype, **more: Any) -> list[StackedRun]:
    """Return runs of one algorithm that differ in all that a stack may differ in."""
    runs = []
    for place, (names, rate, penalty, seed, width) in enumerate(MODELS):
        if name in ROBUST and len(names) < 3:
            continue
        given: dict[str, Any] = {"rounds": 1, "learning_rate": rate, "seed": seed, "weight_decay": 0.01}
        given |= {"penalty_weight": penalty} | ({} if name in NEWTON else {"optimizer": "sgd"}) | more
        if "intra" in name:
            given["environment_size"] = 8
        loss = "regression" if name == "ridge" else "binary"
        network: dict[str, Any] = {} if name in NEWTON else {"hidden": [8]}
        model = build_model("linear" if name in NEWTON else "mlp", (width,), 1, seed, **network).to(dtype)
        runs.append(StackedRun(federation(names, width, loss, dtype, 0.1 * place), model, name, given))
    return runs


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double()


def single(run: StackedRun) -> tuple[nn.Module, str | None]:
    """Return the model of the run's own training, or why it failed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return train(run.federation, run.model, run.algorithm, **run.settings).model, None
        except FedILCError as error:
            return run.model, str(error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", sorted({*CATALOGUE} - {OWN_PENALTY}))
def test_one_step_of_every_entry_is_that_of_the_single_run(name: str, dtype: torch.dtype) -> None:
    runs = stack_of(name, dtype, **({"rounds": 20} if name in NEWTON else {}))
    assert len({stack_key(run) for run in runs}) == 1
    for run, found in zip(runs, train_stack(runs), strict=True):
        expected, failed = single(run)
        assert found.failed == failed is None
        before, single_run, stacked = flat(run.model), flat(expected), flat(found.model)
        step = (single_run - before).abs().max()
        assert step > 0
        # Adding the step to a weight rounds the weight, in both runs: that is no part of the step.
        relative = 1e-6 if dtype == torch.float32 else 1e-12
        rounding = 2 * torch.finfo(dtype).eps * single_run.abs()
        assert bool(((stacked - single_run).abs() <= relative * step + rounding).all())


@pytest.mark.parametrize("name", ["fishr-inter-geo", "fishr-intra-geo", "fedavg", "scaffold", "group-dro"])
def test_runs_of_several_rounds_stay_those_of_the_single_runs(name: str) -> None:
    runs = stack_of(name, torch.float64, rounds=6)
    for run, found in zip(runs, train_stack(runs), strict=True):
        expected, single_run = flat(single(run)[0]), flat(found.model)
        torch.testing.assert_close(single_run, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("more", [{"average": "ema"}, {"average": "last"}, {"max_norm": 0.05}], ids=str)
def test_averages_clipping_and_rounds_are_per_model(more: dict[str, Any]) -> None:
    runs = stack_of("fedsgd", torch.float64, **more)
    lengths = [4, 7, 1, 7, 5, 2]
    runs = [
        StackedRun(run.federation, run.model, run.algorithm, {**run.settings, "rounds": rounds})
        for run, rounds in zip(runs, lengths, strict=True)
    ]
    for run, found, rounds in zip(runs, train_stack(runs), lengths, strict=True):
        assert len(found.history) == rounds
        torch.testing.assert_close(flat(found.model), flat(single(run)[0]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "yogi", "adagrad", "layeradam", "adafactor"])
def test_optimisers_have_the_settings_of_each_model(optimizer: str) -> None:
    runs = stack_of("fedsgd", torch.float64, optimizer=optimizer, rounds=5, learning_rate_schedule="cosine")
    for run, found in zip(runs, train_stack(runs), strict=True):
        torch.testing.assert_close(flat(found.model), flat(single(run)[0]), rtol=1e-9, atol=1e-9)


def test_records_have_the_losses_and_signs_of_the_single_run() -> None:
    runs = stack_of("geometric", torch.float64, rounds=3)
    for run, found in zip(runs, train_stack(runs), strict=True):
        history = train(run.federation, run.model, "geometric", **run.settings).history
        assert [record["round"] for record in found.history] == [1, 2, 3]
        for record, expected in zip(found.history, history, strict=True):
            assert record["train_loss"] == pytest.approx(expected["train_loss"])
            assert record["sign_agreement"] == pytest.approx(expected["sign_agreement"])


def test_a_model_that_diverges_fails_with_its_own_sentence_and_the_others_go_on() -> None:
    runs = stack_of("fedsgd", torch.float32, rounds=8)
    wild = {**runs[1].settings, "learning_rate": 1e30}
    runs[1] = StackedRun(runs[1].federation, runs[1].model, "fedsgd", wild)
    found = train_stack(runs)
    assert found[1].failed == single(runs[1])[1] is not None
    assert [one.failed for one in found[:1] + found[2:]] == [None] * (len(runs) - 1)
    alone = train_stack([run for place, run in enumerate(runs) if place != 1])
    for one, other in zip(found[:1] + found[2:], alone, strict=True):
        torch.testing.assert_close(flat(one.model), flat(other.model))


def test_a_regression_without_a_minimum_fails_alone() -> None:
    runs = stack_of("logistic", torch.float64, rounds=20)
    x = torch.ones(40, 6, dtype=torch.float64)
    twins = Federation("twins", [Silo(name, x, torch.arange(40) % 2) for name in "ab"])
    runs.append(StackedRun(twins, runs[0].model, "logistic", {**runs[0].settings, "weight_decay": 0.0}))
    found = train_stack(runs)
    assert found[-1].failed == single(runs[-1])[1] is not None
    assert not any(one.failed for one in found[:-1])


def test_a_stack_can_be_watched_and_predicts_for_any_of_its_models() -> None:
    runs, seen = stack_of("fedsgd", torch.float64, rounds=2), dict[int, Tensor]()
    x = torch.randn(4, 6, dtype=torch.float64)

    def watch(moment: Moment) -> None:
        assert moment.places == list(range(len(runs)))
        seen[moment.round] = moment.predict([1, 0], [x, x])

    found = train_stack(runs, watch)
    assert list(seen) == [1, 2]
    for place, outputs in zip([1, 0], seen[2], strict=True):
        torch.testing.assert_close(outputs, found[place].model(x).detach())


def test_runs_that_cannot_be_stacked_are_trained_alone_with_the_same_results() -> None:
    runs = stack_of("fedsgd", torch.float64, rounds=2)[:2]
    tanh = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    runs.append(StackedRun(runs[0].federation, tanh, "fedsgd", runs[0].settings))
    runs.append(
        StackedRun(runs[0].federation, runs[0].model, "fedsgd", {**runs[0].settings, "balance": "weights"})
    )
    assert [stack_key(run) is None for run in runs] == [False, False, True, True]
    with pytest.raises(ConfigError, match="cannot be stacked"):
        train_stack(runs)
    rounds = []
    found = train_many(runs, lambda moment: rounds.append((moment.round, tuple(moment.places))))
    assert rounds == [(1, (0, 1)), (2, (0, 1)), (1, (2,)), (2, (2,)), (1, (3,)), (2, (3,))]
    for run, one in zip(runs, found, strict=True):
        torch.testing.assert_close(flat(one.model), flat(single(run)[0]))
