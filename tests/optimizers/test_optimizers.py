"""Optimisers by name take the steps of torch's own, to the bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from fedilc.errors import ConfigError
from fedilc.optimizers.optimizers import (
    OPTIMIZERS,
    FedAdam,
    LayerAdam,
    Yogi,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
)

CASES: list[tuple[str, type[torch.optim.Optimizer], dict[str, Any]]] = [
    ("adam", torch.optim.Adam, {}),
    ("adam", torch.optim.Adam, {"amsgrad": True, "betas": (0.8, 0.99), "maximize": True}),
    ("adam", torch.optim.Adam, {"fused": True}),
    ("adamw", torch.optim.AdamW, {"foreach": True}),
    ("sgd", torch.optim.SGD, {}),
    ("sgd", torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    ("adadelta", torch.optim.Adadelta, {"rho": 0.8}),
    ("adagrad", torch.optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.2}),
    ("adamax", torch.optim.Adamax, {}),
    ("asgd", torch.optim.ASGD, {"t0": 2.0}),
    ("nadam", torch.optim.NAdam, {"decoupled_weight_decay": True}),
    ("radam", torch.optim.RAdam, {}),
    ("rmsprop", torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    ("rprop", torch.optim.Rprop, {"etas": (0.4, 1.3)}),
    ("fedadam", FedAdam, {}),
    ("yogi", Yogi, {}),
    ("layeradam", LayerAdam, {"betas": (0.8, 0.99)}),
]


def steps(network: nn.Module, optimizer: torch.optim.Optimizer, count: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for parameter in network.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=random).to(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@pytest.mark.parametrize(("name", "kind", "options"), CASES)
def test_steps_and_state_are_those_of_torch(
    name: str, kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    mine = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))
    theirs = copy.deepcopy(mine)
    decay = {} if name == "rprop" else {"weight_decay": 0.1}
    ours = make_optimizer(name, list(mine.parameters()), 0.01, options=options, **decay)
    # Every optimiser of torch has lr; its base class, which is what mypy sees, does not.
    plain = kind(list(theirs.parameters()), lr=0.01, **decay, **options)
    steps(mine, ours, 4, seed=1)
    steps(theirs, plain, 4, seed=1)
    assert same(dict(mine.named_parameters()), dict(theirs.named_parameters()))
    assert same(ours.state_dict(), plain.state_dict())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in mine.parameters())

    again = make_optimizer(name, list(mine.parameters()), 0.01, options=options, **decay)
    again.load_state_dict(copy.deepcopy(plain.state_dict()))
    steps(mine, again, 2, seed=2)
    steps(theirs, plain, 2, seed=2)
    assert same(dict(mine.named_parameters()), dict(theirs.named_parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS.names() if name != "newton"])
def test_a_restored_optimizer_takes_the_same_next_steps(name: str, dtype: torch.dtype) -> None:
    network = nn.Linear(3, 2, dtype=dtype)
    optimizer = make_optimizer(name, list(network.parameters()), 0.1)
    steps(network, optimizer, 3, seed=0)
    other = copy.deepcopy(network)
    restored = make_optimizer(name, list(other.parameters()), 0.1)
    restore_optimizer(restored, {name: t.clone() for name, t in optimizer_tensors(optimizer).items()})
    steps(network, optimizer, 2, seed=1)
    steps(other, restored, 2, seed=1)
    assert same(dict(network.named_parameters()), dict(other.named_parameters()))


def test_every_optimizer_of_torch_is_there_but_those_that_need_more_than_dense_gradients() -> None:
    theirs = {
        name.lower()
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    assert theirs - set(OPTIMIZERS.names()) <= {"optimizer", "lbfgs", "sparseadam", "muon"}


@pytest.mark.parametrize("name", ["Optimizer", "LBFGS", "lr_scheduler", "swa_utils", "__init__", "os.system"])
def test_only_known_names_reach_a_class(name: str) -> None:
    with pytest.raises(ConfigError, match="is unknown"):
        make_optimizer(name, [nn.Parameter(torch.zeros(1))], 0.1)


def test_a_weight_decay_that_an_optimizer_has_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="optimizer 'rprop' has no weight decay; leave out"):
        make_optimizer("rprop", [nn.Parameter(torch.zeros(1))], 0.1, 0.5)


def walked(name: str, gradients: torch.Tensor, **options: Any) -> torch.Tensor:
    """The sum of the steps along these gradients of one tensor."""
    w = nn.Parameter(torch.zeros_like(gradients[0]))
    optimizer = make_optimizer(name, [w], 0.1, options=options)
    for row in gradients:
        w.grad = row
        optimizer.step()
    return w.detach()


ROWS = st.lists(st.lists(st.floats(-8, 8, width=16), min_size=3, max_size=3), min_size=1, max_size=6)


@given(ROWS, st.floats(0.01, 1))
def test_layeradam_keeps_what_the_gradients_shrink_and_adam_does_not(
    rows: list[list[float]], share: float
) -> None:
    """A coordinate whose gradients are a share of another's moves that share of its way."""
    gradients = torch.tensor(rows, dtype=torch.float64)
    assume(bool((gradients[:, 0].abs() > 0.1).all()))
    gradients[:, 1] = share * gradients[:, 0]
    w = walked("layeradam", gradients)
    torch.testing.assert_close(w[1], share * w[0], rtol=1e-9, atol=1e-12)
    adam = walked("adam", gradients)
    torch.testing.assert_close(adam[1], adam[0], rtol=1e-4, atol=1e-6)


@given(ROWS, st.integers(-20, 20), st.permutations(range(3)))
def test_layeradam_depends_on_neither_scale_nor_order_of_coordinates(
    rows: list[list[float]], power: int, order: list[int]
) -> None:
    gradients = torch.tensor(rows, dtype=torch.float64)
    assume(bool((gradients.abs().amax(1) > 0.1).all()))
    right = walked("layeradam", gradients, eps=0.0)
    torch.testing.assert_close(walked("layeradam", gradients * 2.0**power, eps=0.0), right)
    torch.testing.assert_close(walked("layeradam", gradients[:, order], eps=0.0), right[order])
    if len(rows) == 1:  # the root mean square of the first step is the rate, as Adam's
        torch.testing.assert_close(right.square().mean().sqrt(), torch.tensor(0.1, dtype=torch.float64))
