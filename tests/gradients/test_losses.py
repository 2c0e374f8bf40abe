"""Losses of quantities, class weights, and Fishr's closed form of them, against autograd in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from computations import computation_of
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import mlp
from torch import Tensor, nn
from torch.nn import functional

from fedilc import Algorithm, Federation, Silo, algorithms, train
from fedilc.algorithms.loss_registry import LOSSES as REGISTERED
from fedilc.errors import ConfigError, ModelError
from fedilc.evaluation.inconsistency import curvatures
from fedilc.gradients import Loss, ModelRunner, SiloComputation
from fedilc.gradients.losses import register
from fedilc.penalties import Fishr

LOSSES = {
    "regression": lambda f, y: (f - y) ** 2 / 2,
    "huber": lambda f, y: functional.huber_loss(f, y, reduction="none", delta=1.0),
    "own-log-cosh": lambda f, y: (f - y).cosh().log(),
}
OWN = {  # the functions of losses that have a closed form, so that both can be compared
    "binary": partial(functional.binary_cross_entropy_with_logits, reduction="none"),
    "multiclass": partial(functional.cross_entropy, reduction="none"),
    "regression": LOSSES["regression"],
}


@pytest.fixture(scope="module", autouse=True)
def _own_losses() -> Iterator[None]:
    register("own-log-cosh", LOSSES["own-log-cosh"], "regression")
    for task, function in OWN.items():
        register(f"own-{task}", function, task)
    yield
    for name in ("own-log-cosh", *(f"own-{task}" for task in OWN)):
        REGISTERED.unregister(name)


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


@pytest.mark.parametrize("task", OWN)
@given(examples=st.integers(1, 6), weighted=st.booleans(), seed=st.integers(0, 10**6))
def test_a_registered_function_has_the_derivatives_of_the_closed_form(
    task: str, examples: int, weighted: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs = 3 if task == "multiclass" else 1
    logits = torch.randn(examples, outputs, generator=generator, dtype=torch.float64).requires_grad_()
    classes = torch.randint(0, max(2, outputs), (examples,), generator=generator)
    weights = (0.5, 2.0, 1.5) if weighted and task != "regression" else None
    right, own = (Loss(name, class_weights=weights) for name in (task, f"own-{task}"))
    y = right.labels(classes, torch.float64)
    assert torch.equal(own.labels(classes, torch.float64), y)
    torch.testing.assert_close(own.per_example(logits, y), right.per_example(logits, y))
    torch.testing.assert_close(own.logit_gradient(logits, y), right.logit_gradient(logits, y))
    torch.testing.assert_close(own.curvature(logits, y), right.curvature(logits, y))
    torch.testing.assert_close(own.weighted_curvature(logits, y), right.weighted_curvature(logits, y))
    along = torch.randn(logits.shape, generator=generator, dtype=torch.float64)
    second = [torch.autograd.grad((f.logit_gradient(logits, y) * along).sum(), logits) for f in (own, right)]
    torch.testing.assert_close(*second)
    with torch.no_grad():
        assert not own.logit_gradient(logits, y).requires_grad


@pytest.mark.parametrize("name", [n for n in algorithms.names() if not algorithms.get(n).is_newton])
def test_every_algorithm_takes_a_registered_loss(name: str, generator: torch.Generator) -> None:
    x = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    federation = Federation("f", [Silo(f"{k}", x + k, x[:, k] > 0) for k in range(3)])
    torch.manual_seed(0)
    model = mlp().double()
    given = {"rounds": 2, "learning_rate": 0.1, "environment_size": 4 if algorithms.get(name).votes else None}
    found, right = (train(federation, model, name, loss=loss, **given) for loss in ("own-binary", None))
    for value, wanted in zip(found.model.parameters(), right.model.parameters(), strict=True):
        torch.testing.assert_close(value, wanted)


def test_newtons_method_takes_built_in_losses_only() -> None:
    federation = Federation("f", [Silo("a", [[0.0], [1.0]], [0, 1])], loss="own-binary")
    for algorithm, sentence in (
        ("logistic", "logistic needs the loss binary, but the data have the loss own-binary"),
        (
            Algorithm(optimizer="newton", update="newton", silo_weights="examples"),
            "custom takes Newton steps, which need a built-in loss",
        ),
    ):
        with pytest.raises(ConfigError, match=sentence):
            train(federation, nn.Linear(1, 1), algorithm, rounds=1, learning_rate=1.0)


def test_a_loss_is_for_the_labels_of_the_data() -> None:
    federation = Federation("f", [Silo("a", [[0.0], [1.0]], [0, 1])])
    with pytest.raises(ConfigError, match="'own-regression' is for regression labels, but the data have bin"):
        train(federation, nn.Linear(1, 1), "fedsgd", rounds=1, learning_rate=1.0, loss="own-regression")
    with pytest.raises(ConfigError, match="loss 'bianry' is unknown; did you mean 'binary'"):
        train(federation, nn.Linear(1, 1), "fedsgd", rounds=1, learning_rate=1.0, loss="bianry")


@pytest.mark.parametrize(
    ("function", "error", "sentence"),
    [
        (
            lambda f, y: (f - y).mean(),
            ModelError,
            "a tensor of shape .. for 2 examples; let it return",
        ),
        (lambda *_: 7.0, ModelError, "gives float for 2 examples"),
        (lambda f, y: (f.detach() - y) ** 2, ModelError, "has no gradient at the model's outputs"),
        (lambda f, _: f[:, 3], ConfigError, r"fails for outputs of shape \(2, 1\): IndexError"),
    ],
)
def test_a_function_that_cannot_be_a_loss_is_refused_before_the_first_round(
    function: Callable[[Tensor, Tensor], Tensor], error: type[Exception], sentence: str
) -> None:
    federation = Federation("f", [Silo("a", [[0.0], [1.0]], [0, 1])])
    register("wrong", function)
    try:
        with pytest.raises(error, match=sentence):
            train(federation, nn.Linear(1, 1), "fedsgd", rounds=1, learning_rate=1.0, loss="wrong")
    finally:
        REGISTERED.unregister("wrong")


def test_register_names_what_is_wrong_with_its_arguments() -> None:
    with pytest.raises(TypeError, match="was given int as the loss 'seven'; give a function"):
        register("seven", 7)
    with pytest.raises(ConfigError, match="task='binery' is unknown; did you mean 'binary'"):
        register("typo", OWN["binary"], "binery")
    with pytest.raises(ConfigError, match="there is already a loss 'huber'; choose another name"):
        register("huber", OWN["regression"], "regression")
