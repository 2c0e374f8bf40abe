"""Local steps: which rows each step has, and that the update is w minus where the steps lead."""

from __future__ import annotations

import pytest
import torch
from computations import computation_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedilc import LocalSteps, Silo
from fedilc.gradients import Loss, ModelRunner, SiloComputation
from fedilc.gradients.local_steps import batches, take_steps


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 40))
def test_every_epoch_holds_every_example_once_in_a_new_order(examples: int, epochs: int, size: int) -> None:
    local = LocalSteps(epochs=epochs, batch_size=size)
    rows = list(batches(examples, local, seed=0, round_=1, silo="a"))
    assert len(rows) == local.count(examples)
    if size >= examples:
        assert rows == [None] * epochs
        return
    drawn = torch.cat([part for part in rows if part is not None]).view(epochs, examples)
    assert all(epoch.sort().values.tolist() == list(range(examples)) for epoch in drawn)


def test_batches_derive_from_seed_round_and_silo() -> None:
    local = LocalSteps(epochs=1, batch_size=5)
    places = [(0, 1, "a"), (0, 1, "a"), (1, 1, "a"), (0, 2, "a"), (0, 1, "b")]
    orders = [torch.cat(list(batches(40, local, *place))).tolist() for place in places]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 4


def computation(generator: torch.Generator) -> SiloComputation:
    model = nn.Linear(3, 1).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return computation_of(ModelRunner(model, Loss("regression")), Silo("a", x, x[:, 0]))


def by_hand(work: SiloComputation, local: LocalSteps, correction: float) -> dict[str, Tensor]:
    """Full-batch SGD with the gradient of the mean squared error written down."""
    start = {name: p.detach().clone() for name, p in work.runner.parameters.items()}
    w = dict(start)
    for _ in range(local.count(len(work.x))):
        error = (work.x @ w["weight"].T + w["bias"])[:, 0] - work.y
        gradient = {"weight": (error @ work.x / len(work.x)).unsqueeze(0), "bias": error.mean().reshape(1)}
        for name, value in gradient.items():
            pull = local.proximal * (w[name] - start[name])
            w[name] = w[name] - local.learning_rate * (value + correction + pull)
    return {name: start[name] - w[name] for name in start}


@pytest.mark.parametrize("correction", [0.0, 0.3])
@pytest.mark.parametrize("proximal", [0.0, 0.5])
def test_the_update_is_that_of_plain_steps_and_the_weights_are_restored(
    proximal: float, correction: float, generator: torch.Generator
) -> None:
    work, local = computation(generator), LocalSteps(steps=4, learning_rate=0.2, proximal=proximal)
    before = {name: p.detach().clone() for name, p in work.runner.parameters.items()}
    added = {name: torch.full_like(p, correction) for name, p in before.items()}
    found = take_steps(work, local, 1, correction=added if correction else None)
    for name, expected in by_hand(work, local, correction).items():
        torch.testing.assert_close(found.update[name], expected)
        assert torch.equal(work.runner.parameters[name], before[name])


def test_the_mean_gradient_is_without_the_correction_and_the_loss_is_that_of_all_steps(
    generator: torch.Generator,
) -> None:
    work, rate = computation(generator), 0.2
    first = work.gradients(1)
    added = {name: torch.ones_like(p) for name, p in work.runner.parameters.items()}
    found = take_steps(work, LocalSteps(steps=1, learning_rate=rate), 1, correction=added)
    assert found.loss == first.loss
    for name, gradient in first.gradient.items():
        torch.testing.assert_close(found.mean_gradient[name], gradient)
        torch.testing.assert_close(found.update[name], rate * (gradient + 1))
