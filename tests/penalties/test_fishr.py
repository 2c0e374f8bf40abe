"""Fishr's variance and its product against per-example autograd, and against a central run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from computations import computation_of
from networks import mlp, redraw
from steps import stepped_gradient
from torch import Tensor, nn
from torch.nn import functional

from fedilc import Algorithm, Federation, Silo, algorithms, train
from fedilc.errors import ConfigError, ModelError
from fedilc.gradients import Loss, ModelRunner, logits_layer
from fedilc.penalties import Fishr

KINDS = ("diagonal", "full")
LOSSES = {"binary": 1, "multiclass": 10}


def silo_of(
    loss: str, examples: int, generator: torch.Generator, name: str = "s", shift: float = 0.0
) -> Silo:
    x = torch.randn(examples, 6, generator=generator, dtype=torch.float64) + shift
    return Silo(name, x, torch.randint(0, 2 if loss == "binary" else 10, (examples,), generator=generator))


def per_example_losses(model: nn.Module, silo: Silo, loss: str) -> Tensor:
    logits = model(silo.x)
    if loss == "binary":
        return functional.binary_cross_entropy_with_logits(logits[:, 0], silo.y.double(), reduction="none")
    return functional.cross_entropy(logits, silo.y.long(), reduction="none")


def central_variance(model: nn.Module, silo: Silo, loss: str, kind: str) -> Tensor:
    """C_e by one differentiable backward for each example through the classifier's parameters."""
    classifier = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    parameters = list(classifier.parameters())
    samples = []
    for value in per_example_losses(model, silo, loss):
        gradients = torch.autograd.grad(value, parameters, create_graph=True)
        pieces = [gradients[0]] if len(gradients) == 1 else [gradients[0], gradients[1].unsqueeze(1)]
        samples.append(torch.cat(pieces, 1).flatten())
    stack = torch.stack(samples)
    centred = stack - stack.mean(0)
    return centred.square().mean(0) if kind == "diagonal" else centred.T @ centred / len(stack)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_variance_equals_per_example_gradients(
    loss: str, kind: str, bias: bool, generator: torch.Generator
) -> None:
    model = mlp(LOSSES[loss]).double()
    if not bias:
        model[-1] = redraw(nn.Linear(8, LOSSES[loss], bias=False)).double()
    silo = silo_of(loss, 15, generator)
    runner = ModelRunner(model, Loss(loss))
    found = computation_of(runner, silo, penalty=Fishr(kind)).statistics(1, keep_bytes=0)
    torch.testing.assert_close(found, central_variance(model, silo, loss, kind), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 28])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_product_equals_autograd_in_chunks_or_whole(
    loss: str, kind: str, keep: bool, chunk_bytes: int, generator: torch.Generator
) -> None:
    model = mlp(LOSSES[loss]).double()
    silo = silo_of(loss, 9, generator)
    variance = central_variance(model, silo, loss, kind)
    vector = torch.randn(variance.shape, generator=generator, dtype=torch.float64)
    vector = vector + vector.T if kind == "full" else vector
    expected = torch.autograd.grad((variance * vector).sum(), list(model.parameters()))
    runner = ModelRunner(model, Loss(loss), chunk_bytes=chunk_bytes)
    computation = computation_of(runner, silo, penalty=Fishr(kind))
    computation.statistics(1, keep)
    found = computation.gradients(1, vector).penalty_gradient
    assert found is not None
    for value, right in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-9, atol=1e-12)


PENALTY = [name for name in algorithms.PAPER if algorithms.get(name).penalty]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("algorithm", PENALTY)
def test_the_federated_penalty_gradient_equals_centralised_autograd(
    algorithm: str, loss: str, kind: str, reduction: str, generator: torch.Generator, tmp_path: Path
) -> None:
    """The step with lambda = 1 minus the step with lambda = 0 is grad L, exactly."""
    model = mlp(LOSSES[loss]).double()
    silos = [silo_of(loss, 8 + 3 * e, generator, f"s{e}", 0.3 * e) for e in range(3)]
    federation = Federation("f", silos, loss=loss)
    variances = torch.stack([central_variance(model, silo, loss, kind) for silo in silos])
    distances = (variances - variances.mean(0)).square().flatten(1).sum(1)
    fishr = distances.mean() if reduction == "mean" else distances.sum()
    expected = torch.autograd.grad(fishr, list(model.parameters()))
    steps = {}
    for penalty in (1.0, 0.0):
        steps[penalty], result = stepped_gradient(
            federation,
            model,
            algorithm,
            tmp_path / str(penalty),
            penalty_weight=penalty,
            environment_size=1,
            covariance=kind,
            fishr_reduction=reduction,
        )
        if penalty:
            assert result.history[0]["penalty"] == pytest.approx(fishr.item(), rel=1e-9)
    scale = max(float(value.abs().max()) for value in expected)
    for name, right in zip(steps[1.0], expected, strict=True):
        difference = steps[1.0][name] - steps[0.0][name]
        torch.testing.assert_close(difference, right, rtol=1e-9, atol=1e-9 * scale)


def test_ones_own_algorithm_may_join_everything(generator: torch.Generator) -> None:
    silos = [silo_of("binary", 12, generator, f"s{e}", 0.2 * e) for e in range(3)]
    mine = Algorithm(intra="geometric", inter="geometric", penalty="fishr")
    result = train(
        Federation("f", silos), mlp().double(), mine, rounds=3, learning_rate=0.01, environment_size=4
    )
    assert result.algorithm == "custom"
    assert result.history[-1]["sign_agreement"]["1.weight"] > 0


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x.unflatten(1, (2, 3))).mean(1)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return 10 * self.head(x)


class HeadFirst(nn.Module):
    """The head is registered before the body, called with a keyword, and its logits are squeezed."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 1)
        self.body = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(input=self.body(x).tanh()).squeeze(1)


@pytest.mark.parametrize("model", [Pooled(), Scaled()])
def test_a_model_whose_logits_no_linear_layer_gives_cannot_have_the_penalty(
    model: nn.Module, generator: torch.Generator
) -> None:
    federation = Federation("f", [silo_of("binary", 6, generator)])
    with pytest.raises(ModelError, match="no linear layer gives the model's logits"):
        train(federation, redraw(model).double(), "fedcurv", rounds=1, learning_rate=0.1)
    train(federation, redraw(model).double(), "fedsgd", rounds=1, learning_rate=0.1)


def test_a_hidden_layer_cannot_be_named_as_classifier(generator: torch.Generator) -> None:
    federation = Federation("f", [silo_of("binary", 6, generator)])
    with pytest.raises(ModelError, match="'1' does not give the model's logits"):
        train(federation, mlp().double(), "fedcurv", rounds=1, learning_rate=0.1, classifier="1")


def test_the_layer_that_gives_the_logits_is_found_wherever_it_is_registered(
    generator: torch.Generator,
) -> None:
    silo = silo_of("binary", 6, generator)
    model = redraw(HeadFirst()).double()
    assert logits_layer(model, Loss("binary"), silo.x, None) == "head"
    result = train(
        Federation("f", [silo, silo_of("binary", 5, generator, "t")]),
        model,
        "fishr-inter-geo",
        rounds=2,
        learning_rate=0.1,
    )
    assert result.history[-1]["penalty"] > 0


def test_the_variance_is_right_where_gradients_hardly_vary() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 100 + 0.1 * torch.randn(500, 6, generator=generator)
    silo = Silo("s", x, torch.ones(500))
    model = redraw(nn.Linear(6, 1), scale=1e-4)
    runner = ModelRunner(model, Loss("binary"))
    found = computation_of(runner, silo, penalty=Fishr()).statistics(1, keep_bytes=0)
    wide = Silo("s", x.double(), torch.ones(500))
    expected = central_variance(model.double(), wide, "binary", "diagonal")
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_taken_in_blocks_give_the_same_variance_and_product(
    kind: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo = silo_of("multiclass", 23, generator)

    def computed() -> list[Tensor]:
        runner = ModelRunner(mlp(10).double(), Loss("multiclass"))
        computation = computation_of(runner, silo, penalty=Fishr(kind))
        variance = computation.statistics(1, keep_bytes=1 << 30)
        found = computation.gradients(1, variance - 0.5)
        assert found.penalty_gradient is not None
        return [variance, *found.penalty_gradient.values()]

    whole = computed()
    monkeypatch.setattr("fedilc.penalties.fishr.CACHE_BYTES", 8 * 8 * 5)
    for ours, theirs in zip(computed(), whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_covariance_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="covariance"):
        Fishr("digaonal")
