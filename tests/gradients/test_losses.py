"""Losses of quantities, class weights, and Fishr's closed form of them, against autograd in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from computations import computation_of
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import mlp
from torch import Tensor, nn
from torch.nn import functional

from fedilc import Federation, Silo
from fedilc.errors import ModelError
from fedilc.evaluation.inconsistency import curvatures
from fedilc.gradients import Loss, ModelRunner, SiloComputation
from fedilc.penalties import Fishr

LOSSES = {
    "regression": lambda f, y: (f - y) ** 2 / 2,
    "huber": lambda f, y: functional.huber_loss(f, y, reduction="none", delta=1.0),
}


def classifier_variance(model: nn.Module, losses: Tensor, kind: str) -> Tensor:
    """C_e by one differentiable backward per example through the last layer."""
    samples = []
    for value in losses:
        weight, bias = torch.autograd.grad(value, list(model[-1].parameters()), create_graph=True)
        samples.append(torch.cat([weight, bias.unsqueeze(1)], 1).flatten())
    stack = torch.stack(samples)
    centred = stack - stack.mean(0)
    return centred.square().mean(0) if kind == "diagonal" else centred.T @ centred / len(stack)


@pytest.mark.parametrize("name", LOSSES)
@given(
    outputs=st.lists(st.floats(-5, 5), min_size=1, max_size=8),
    shift=st.floats(-3, 3).filter(lambda value: abs(abs(value) - 1) > 1e-6),
)
def test_the_gradient_and_the_curvature_at_the_output_are_autograds(
    name: str, outputs: list[float], shift: float
) -> None:
    f = torch.tensor(outputs, dtype=torch.float64).unsqueeze(1).requires_grad_()
    y = f.detach()[:, 0] + shift
    loss = Loss(name)
    losses = loss.per_example(f, y)
    torch.testing.assert_close(losses, LOSSES[name](f[:, 0], y))
    (slope,) = torch.autograd.grad(losses.sum(), f, create_graph=True)
    torch.testing.assert_close(loss.logit_gradient(f, y), slope)
    (bend,) = torch.autograd.grad(slope.sum(), f)
    torch.testing.assert_close(loss.curvature(f, y), bend)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=15)
@given(examples=st.integers(2, 9), chunk=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_fishr_of_a_squared_error_has_autograds_variance_and_product(
    name: str, kind: str, examples: int, chunk: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = mlp().double()
    x = torch.randn(examples, 6, generator=generator, dtype=torch.float64)
    y = 2 * torch.randn(examples, generator=generator, dtype=torch.float64)
    runner = ModelRunner(model, Loss(name))
    runner.most_examples = lambda _: chunk  # any chunks give the same
    computation = computation_of(runner, Silo("s", x, y), penalty=Fishr(kind))
    right = classifier_variance(model, LOSSES[name](model(x)[:, 0], y), kind)
    torch.testing.assert_close(computation.statistics(1, keep_bytes=0), right, rtol=1e-9, atol=1e-12)
    vector = torch.randn(right.shape, generator=generator, dtype=torch.float64)
    vector = vector + vector.T if kind == "full" else vector
    expected = torch.autograd.grad((right * vector).sum(), list(model.parameters()), materialize_grads=True)
    found = computation.gradients(1, vector).penalty_gradient
    assert found is not None
    for value, wanted in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("outputs", [1, 3])
def test_class_weights_weigh_each_examples_loss_and_gradient(
    outputs: int, generator: torch.Generator
) -> None:
    name = "binary" if outputs == 1 else "multiclass"
    model = mlp(outputs).double()
    x = torch.randn(7, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, max(2, outputs), (7,), generator=generator)
    weights = (0.5, 2.0, 1.5)[: max(2, outputs)]
    loss = replace(Loss(name), class_weights=weights)
    runner = ModelRunner(model, Loss(name))
    labels = runner.labels(y)
    losses = Loss(name).per_example(model(x), labels) * torch.tensor(weights, dtype=torch.float64)[y]
    torch.testing.assert_close(loss.per_example(model(x), labels), losses)
    computation = SiloComputation(runner, "s", x, labels, penalty=Fishr(), loss=loss)
    right = classifier_variance(model, losses, "diagonal")
    torch.testing.assert_close(computation.statistics(1, keep_bytes=0), right, rtol=1e-9, atol=1e-12)
    found = computation.gradients(1)
    expected = torch.autograd.grad(losses.mean(), list(model.parameters()))
    assert found.loss == pytest.approx(losses.mean().item())
    for value, wanted in zip(found.gradient.values(), expected, strict=True):
        torch.testing.assert_close(value, wanted)


@pytest.mark.parametrize("name", LOSSES)
def test_the_hessian_of_a_silo_is_autograds(name: str, generator: torch.Generator) -> None:
    x = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    y = 2 * torch.randn(6, generator=generator, dtype=torch.float64)
    model = mlp().double()
    found = curvatures(Federation("f", [Silo("a", x, y)], loss=name), model, curvature="hessian")["a"]
    features, last = model[:-1](x).detach(), model[-1]

    def mean_loss(weight: Tensor) -> Tensor:
        return LOSSES[name](features @ weight[:-1] + weight[-1], y).mean()

    weight = torch.cat([last.weight[0], last.bias]).detach()
    right = torch.autograd.functional.hessian(mean_loss, weight).diagonal()
    torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-12)


def test_a_model_with_two_outputs_is_refused_for_regression() -> None:
    with pytest.raises(ModelError, match=r"shape \(3, 2\); the regression loss needs one number"):
        Loss("regression").logits(torch.zeros(3, 2))
