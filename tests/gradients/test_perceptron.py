"""Gradients by hand: those of autograd, to the bit, and only for networks that are perceptrons."""

from __future__ import annotations

import pytest
import torch
from computations import computation_of
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from fedilc import LocalSteps, Silo
from fedilc.gradients import Loss, ModelRunner, _kernels
from fedilc.gradients.fast_linear import LEAST_ROWS, LEAST_WIDTH
from fedilc.gradients.local_steps import Stepped, take_steps
from fedilc.gradients.perceptron import Perceptron
from fedilc.models import build_model

BUILT_IN = ("binary", "multiclass", "regression", "huber")


def silo_for(loss: str, examples: int, generator: torch.Generator) -> Silo:
    x = torch.randn(examples, 2, 3, generator=generator)
    y = torch.randn(examples, generator=generator)
    if loss in ("binary", "multiclass"):
        y = y.gt(0).long()
    return Silo("a", x, y)


@given(
    loss=st.sampled_from(BUILT_IN),
    hidden=st.lists(st.integers(1, 40), max_size=3),
    examples=st.integers(1, 70),
    weighted=st.booleans(),
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
def test_gradient_and_loss_have_the_bits_of_autograd(
    loss: str, hidden: list[int], examples: int, weighted: bool, wide: bool, seed: int
) -> None:
    classes = loss in ("binary", "multiclass")
    network = build_model("mlp", (2, 3), 3 if loss == "multiclass" else 1, seed, hidden=hidden)
    runner = ModelRunner(network.double() if wide else network, Loss(loss))
    silo = silo_for(loss, examples, torch.Generator().manual_seed(seed))
    work = computation_of(runner, silo)
    work.loss = Loss(loss, (0.3, 1.7, 1.0)) if weighted and classes else None
    by_hand = work.gradients(1)
    assert runner.perceptron is not None
    runner.perceptron = None
    by_autograd = work.gradients(1)
    assert by_hand.loss == by_autograd.loss
    for name, gradient in by_autograd.gradient.items():
        assert torch.equal(by_hand.gradient[name], gradient)


def steps_of(runner: ModelRunner, silo: Silo, local: LocalSteps, correction: float) -> Stepped:
    added = {name: torch.full_like(p, correction) for name, p in runner.parameters.items()}
    return take_steps(computation_of(runner, silo), local, 2, correction=added if correction else None)


@pytest.mark.parametrize("loss", BUILT_IN)
@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 2, "batch_size": 8},
        {"steps": 3},
        {"epochs": 1, "batch_size": 8, "momentum": 0.9, "proximal": 0.1},
        {"steps": 5, "batch_size": 30, "optimizer": "adam", "learning_rate": 0.01},
    ],
)
@pytest.mark.parametrize("correction", [0.0, 0.2])
def test_local_steps_have_the_bits_of_autograd(
    loss: str,
    settings: dict[str, float],
    correction: float,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_kernels, "MOST_PRODUCTS", 0)  # the compiled loop has bits of its own
    runner = ModelRunner(build_model("mlp", (2, 3), 1 + (loss == "multiclass"), 0, hidden=[9]), Loss(loss))
    silo, local = silo_for(loss, 37, generator), LocalSteps(**settings)
    by_hand = steps_of(runner, silo, local, correction)
    runner.perceptron = None
    by_autograd = steps_of(runner, silo, local, correction)
    assert by_hand.loss == by_autograd.loss
    assert by_hand.mean_gradient.keys() == by_autograd.mean_gradient.keys()
    for name, update in by_autograd.update.items():
        assert torch.equal(by_hand.update[name], update)
    for name, mean in by_autograd.mean_gradient.items():
        assert torch.equal(by_hand.mean_gradient[name], mean)


def hooked() -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
    network[1].register_forward_hook(lambda _module, _inputs, output: 2 * output)
    return network


def frozen() -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
    network[0].bias.requires_grad_(False)
    return network


def tied() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(6, 1))


class Own(nn.Linear):
    """A layer that computes something else."""


@pytest.mark.parametrize(
    "network",
    [
        nn.Linear(6, 1),
        nn.Sequential(),
        nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)),
        nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1)),
        nn.Sequential(nn.Linear(6, 4), nn.ReLU()),
        nn.Sequential(nn.Linear(6, 4, bias=False), nn.ReLU(), nn.Linear(4, 1)),
        nn.Sequential(nn.Flatten(0), nn.Linear(6, 1)),
        nn.Sequential(Own(6, 1)),
        nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 1))),
        nn.Sequential(nn.Linear(6, 1)).bfloat16(),
        hooked(),
        frozen(),
        tied(),
    ],
)
def test_other_networks_are_no_perceptrons(network: nn.Module) -> None:
    assert Perceptron.of(network) is None


def test_layers_of_odd_widths_with_many_rows_keep_their_own_product() -> None:
    x, loss = torch.zeros(LEAST_ROWS, 6), Loss("binary")
    wide = Perceptron.of(build_model("mlp", (6,), 1, 0, hidden=[LEAST_WIDTH + 1]))
    narrow = Perceptron.of(build_model("mlp", (6,), 1, 0, hidden=[LEAST_WIDTH]))
    assert wide is not None
    assert narrow is not None
    assert narrow.takes(x, LEAST_ROWS, loss)
    assert wide.takes(x, LEAST_ROWS - 1, loss)
    assert not wide.takes(x, LEAST_ROWS, loss)
    assert not narrow.takes(x.double(), 5, loss)
