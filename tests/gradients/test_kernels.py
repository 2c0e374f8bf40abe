"""The compiled loop of local steps: the steps of torch in float64, and the same bits however it is called."""

from __future__ import annotations

import math

import pytest
import torch
from computations import computation_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedilc import LocalSteps, Silo
from fedilc.gradients import Loss, ModelRunner, _kernels
from fedilc.gradients.local_steps import Stepped, batches, orders, take_steps
from fedilc.models import build_model

BUILT_IN = ("binary", "multiclass", "regression", "huber")


def runner_for(loss: str, hidden: list[int], seed: int, dtype: torch.dtype = torch.float64) -> ModelRunner:
    network = build_model("mlp", (2, 3), 3 if loss == "multiclass" else 1, seed, hidden=hidden)
    return ModelRunner(network.to(dtype), Loss(loss))


def silo_for(loss: str, examples: int, seed: int, scale: float = 1.0) -> Silo:
    generator = torch.Generator().manual_seed(seed)
    y = 2 * torch.randn(examples, generator=generator)
    if loss in ("binary", "multiclass"):
        y = torch.randint(3 if loss == "multiclass" else 2, (examples,), generator=generator)
    return Silo("a", scale * torch.randn(examples, 2, 3, generator=generator), y)


def step(runner: ModelRunner, silo: Silo, local: LocalSteps, correction: float, weighted: bool) -> Stepped:
    added = {name: torch.full_like(p, correction) for name, p in runner.parameters.items()}
    work = computation_of(runner, silo)
    work.loss = Loss(runner.loss.name, (0.3, 1.7, 1.0)) if weighted and runner.loss.has_classes else None
    return take_steps(work, local, 2, correction=added if correction else None)


@given(
    loss=st.sampled_from(BUILT_IN),
    hidden=st.lists(st.integers(1, 20), max_size=3),
    examples=st.integers(1, 50),
    local=st.sampled_from(
        [
            LocalSteps(epochs=2, batch_size=8),
            LocalSteps(steps=5, batch_size=30, proximal=0.1, learning_rate=0.03),
            LocalSteps(steps=3),
        ]
    ),
    correction=st.sampled_from([0.0, 0.2]),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_steps_are_those_of_autograd(
    loss: str,
    hidden: list[int],
    examples: int,
    local: LocalSteps,
    correction: float,
    weighted: bool,
    seed: int,
) -> None:
    runner, silo = runner_for(loss, hidden, seed), silo_for(loss, examples, seed)
    before = [parameter.clone() for parameter in runner.parameters.values()]
    compiled = step(runner, silo, local, correction, weighted)
    assert all(map(torch.equal, before, runner.parameters.values()))
    runner.perceptron = None
    expected = step(runner, silo, local, correction, weighted)
    assert compiled.loss == pytest.approx(expected.loss, rel=1e-12)
    for name, update in expected.update.items():
        torch.testing.assert_close(compiled.update[name], update, rtol=1e-12, atol=1e-13)
    assert compiled.mean_gradient.keys() == expected.mean_gradient.keys()
    for name, mean in expected.mean_gradient.items():
        torch.testing.assert_close(compiled.mean_gradient[name], mean, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("loss", BUILT_IN)
def test_float32_is_as_near_to_float64_as_torch_is(loss: str) -> None:
    silo, local = silo_for(loss, 300, 0), LocalSteps(epochs=3, batch_size=32)
    exact = step(runner_for(loss, [16, 16], 0), silo, local, 0.0, False)
    compiled = step(runner_for(loss, [16, 16], 0, torch.float32), silo, local, 0.0, False)
    by_torch = runner_for(loss, [16, 16], 0, torch.float32)
    by_torch.perceptron = None
    torchs = step(by_torch, silo, local, 0.0, False)
    for name, update in exact.update.items():
        error = (compiled.update[name] - update).norm()
        assert error <= 3 * (torchs.update[name] - update).norm() + 1e-7 * update.norm()


def several(threads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Train four models of two seeds on one silo, with rates of their own."""
    loss, local, examples = "multiclass", LocalSteps(epochs=2, batch_size=32), 700
    silo = silo_for(loss, examples, 1)
    rows = [
        torch.cat([p.detach().flatten() for p in runner_for(loss, [24], m).parameters.values()])
        for m in range(4)
    ]
    each = torch.stack([orders(examples, local, seed, 1, "a") for seed in (0, 1)])
    x = silo.x.flatten(1).double().expand(4, examples, 6)
    given = torch.stack(rows), x, silo.y.expand(4, examples), each, torch.tensor([0, 1, 1, 0])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _kernels.take_steps(*given, local, [0.1, 0.1, 0.3, 0.2], [6, 24, 3], Loss(loss))
    finally:
        torch.set_num_threads(before)


def test_models_that_share_threads_or_are_alone_have_the_same_bits() -> None:
    together, shared = several(1), several(3)
    assert all(map(torch.equal, together, shared))
    loss, local = "multiclass", LocalSteps(epochs=2, batch_size=32, learning_rate=0.3)
    work = computation_of(runner_for(loss, [24], 2), silo_for(loss, 700, 1))
    work.seed = 1
    alone = take_steps(work, local, 1)
    begun = torch.cat([p.detach().flatten() for p in work.runner.parameters.values()])
    assert torch.equal(torch.cat([u.flatten() for u in alone.update.values()]), begun - together[0][2])
    assert alone.loss == together[2][2]


@pytest.mark.parametrize("loss", BUILT_IN)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_stays_so(loss: str, bad: float) -> None:
    runner, silo = runner_for(loss, [4], 0), silo_for(loss, 20, 0)
    with torch.no_grad():
        runner.parameters["1.weight"][0, 0] = bad
    found = step(runner, silo, LocalSteps(epochs=1, batch_size=8), 0.0, False)
    assert not all(torch.isfinite(update).all() for update in found.update.values())


def test_other_steps_go_through_torch() -> None:
    weights = torch.zeros(2, 100)
    assert _kernels.usable(LocalSteps(epochs=1, batch_size=32), 90, weights)
    assert not _kernels.usable(LocalSteps(epochs=1, batch_size=32, momentum=0.9), 90, weights)
    assert not _kernels.usable(LocalSteps(epochs=1, batch_size=32, optimizer="adam"), 90, weights)
    assert not _kernels.usable(LocalSteps(epochs=1), 6000, weights)
    assert not _kernels.usable(LocalSteps(epochs=1, batch_size=32), 90, weights.bfloat16())
    assert not _kernels.usable(LocalSteps(epochs=1, batch_size=32), 90, torch.zeros(1, 1 << 16))


@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 9))
def test_orders_are_those_of_the_batches(examples: int, size: int, steps: int) -> None:
    local = LocalSteps(steps=steps, batch_size=size)
    drawn = [rows for rows in batches(examples, local, 0, 1, "a") if rows is not None]
    if drawn:
        assert torch.equal(
            torch.cat(drawn), orders(examples, local, 0, 1, "a").flatten()[: sum(map(len, drawn))]
        )
    else:
        assert torch.equal(orders(examples, local, 0, 1, "a"), torch.arange(examples).unsqueeze(0))
