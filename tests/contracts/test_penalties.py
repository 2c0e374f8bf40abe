"""Every penalty: its federated gradient against centralised autograd of L = 1/E sum_e ||s_e - mean s||^2."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from worked_examples import OWN_PENALTY

from fedilc import Algorithm, Federation, Silo, train
from fedilc.aggregation import AGGREGATORS
from fedilc.algorithms.algorithm import ROBUST
from fedilc.gradients.environments import lay_out
from fedilc.penalties import PENALTIES

LAMBDA = 0.7
EXAMPLES = (6, 7, 9)
INTER = sorted(set(AGGREGATORS.names()) - set(ROBUST))

Losses = Callable[[Tensor], Tensor]


class Network(nn.Module):
    """A body and a classifier, whose input is kept for the oracle."""

    def __init__(self, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.classifier = nn.Linear(4, outputs)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def losses_of(logits: Tensor, y: Tensor) -> Tensor:
    if y.is_floating_point():
        return (logits[:, 0] - y).square() / 2
    if logits.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(logits[:, 0], y.to(logits), reduction="none")
    return functional.cross_entropy(logits, y, reduction="none")


def flat_gradient(value: Tensor, parameters: list[nn.Parameter], graph: bool) -> Tensor:
    found = torch.autograd.grad(value, parameters, create_graph=graph)
    return torch.cat([part.reshape(-1) for part in found])


def fishr(model: Network, x: Tensor, y: Tensor) -> Tensor:
    losses = losses_of(model(x), y)
    rows = [flat_gradient(loss, list(model.classifier.parameters()), graph=True) for loss in losses]
    return torch.stack(rows).var(0, unbiased=False)


def vrex(model: Network, x: Tensor, y: Tensor) -> Tensor:
    return losses_of(model(x), y).mean().reshape(1)


def coral(model: Network, x: Tensor, y: Tensor) -> Tensor:
    z = model.features(x)
    return torch.cat([z.mean(0), torch.cov(z.T).reshape(-1)])


def iga(model: Network, x: Tensor, y: Tensor) -> Tensor:
    return flat_gradient(losses_of(model(x), y).mean(), list(model.parameters()), graph=True)


def irm(model: Network, x: Tensor, y: Tensor) -> Tensor:
    scale = torch.ones((), dtype=x.dtype, requires_grad=True)
    mean = losses_of(model(x) * scale, y).mean()
    return torch.autograd.grad(mean, scale, create_graph=True)[0].reshape(1)


STATISTICS = {"fishr": fishr, "vrex": vrex, "coral": coral, "iga": iga, "irm": irm}


def penalty_of(name: str, model: Network, federation: Federation, reduction: str) -> Tensor:
    """L, written down as in the design."""
    values = [STATISTICS[name](model, silo.x, silo.y) for silo in federation.silos]
    centre = torch.zeros_like(values[0]) if name == "irm" else torch.stack(values).mean(0)
    total = sum(
        ((value - centre).square().sum() for value in values), start=torch.zeros((), dtype=torch.float64)
    )
    return total / len(values) if reduction == "mean" else total


def silo_gradient(model: Network, silo: Silo, intra: str, size: int | None) -> dict[str, Tensor]:
    """The gradient of a silo: of its mean loss, or aggregated over environments."""
    names = [name for name, _ in model.named_parameters()]

    def gradient(rows: Tensor) -> dict[str, Tensor]:
        found = torch.autograd.grad(
            losses_of(model(silo.x[rows]), silo.y[rows]).mean(), list(model.parameters())
        )
        return dict(zip(names, found, strict=True))

    everything = torch.arange(len(silo))
    if intra == "whole" or size is None:
        return gradient(everything)
    order = lay_out(len(silo), size, 10**6, 0, 1, silo.name).order
    assert order is not None
    return combined(intra, [gradient(rows) for rows in order.split(size)])


def combined(rule: str, values: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    aggregator = AGGREGATORS.build(rule)
    state = aggregator.zero(values[0])
    for value in values:
        state = aggregator.accumulate(state, value)
    return aggregator.finalize(state).value


@pytest.fixture(params=[1, 10, 0], ids=["binary", "ten-classes", "regression"])
def problem(request: pytest.FixtureRequest, generator: torch.Generator) -> tuple[Federation, Network]:
    outputs = request.param
    silos = []
    for number, examples in enumerate(EXAMPLES):
        x = torch.randn(examples, 5, generator=generator, dtype=torch.float64) + number / 3
        y = torch.randint(0, max(2, outputs), (examples,), generator=generator)
        silos.append(Silo(f"silo {number}", x, y if outputs else x[:, 0].square() + y))
    loss = {0: "regression", 1: "binary", 10: "multiclass"}[outputs]
    return Federation("f", silos, loss=loss), Network(outputs or 1, generator).double()


def step_of(
    federation: Federation, model: Network, algorithm: Algorithm, **options: object
) -> dict[str, Tensor]:
    """The server's whole gradient: what one step of plain SGD with rate 1 takes away from w."""
    result = train(
        federation,
        model,
        algorithm,
        rounds=1,
        learning_rate=1.0,
        penalty_weight=LAMBDA,
        outlier_factor=0,
        **options,
    )
    after = dict(result.model.named_parameters())
    return {name: (before - after[name]).detach() for name, before in model.named_parameters()}


def test_every_penalty_has_an_oracle() -> None:
    assert set(PENALTIES.names()) - {OWN_PENALTY} == set(STATISTICS)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("inter", INTER)
@pytest.mark.parametrize("intra", ["whole", "geometric"])
@pytest.mark.parametrize("name", STATISTICS)
def test_the_federated_gradient_equals_centralised_autograd(
    name: str, intra: str, inter: str, reduction: str, problem: tuple[Federation, Network]
) -> None:
    federation, model = problem
    size = None if intra == "whole" else 3
    algorithm = Algorithm(intra=intra, inter=inter, penalty=name, optimizer="sgd")
    found = step_of(federation, model, algorithm, environment_size=size, fishr_reduction=reduction)
    right = combined(inter, [silo_gradient(model, silo, intra, size) for silo in federation.silos])
    matched = torch.autograd.grad(
        penalty_of(name, model, federation, reduction), list(model.parameters()), materialize_grads=True
    )
    for (key, value), term in zip(right.items(), matched, strict=True):
        torch.testing.assert_close(found[key], value + LAMBDA * term, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("inter", ROBUST)
@pytest.mark.parametrize("name", STATISTICS)
def test_a_robust_rule_takes_in_the_penalty_of_each_silo_and_silos_match_its_centre(
    name: str, inter: str, reduction: str, problem: tuple[Federation, Network]
) -> None:
    federation, model = problem
    found = step_of(
        federation, model, Algorithm(inter=inter, penalty=name, optimizer="sgd"), fishr_reduction=reduction
    )
    statistics = [STATISTICS[name](model, silo.x, silo.y) for silo in federation.silos]
    centre = combined(inter, [{"s": value.detach()} for value in statistics])["s"]
    centre = torch.zeros_like(centre) if name == "irm" else centre
    updates = []
    for silo, statistic in zip(federation.silos, statistics, strict=True):
        distance = (statistic - centre).square().sum() * (1 if reduction == "mean" else len(EXAMPLES))
        terms = torch.autograd.grad(distance, list(model.parameters()), materialize_grads=True)
        gradient = silo_gradient(model, silo, "whole", None)
        updates.append(
            {key: g + LAMBDA * term for (key, g), term in zip(gradient.items(), terms, strict=True)}
        )
    for key, value in combined(inter, updates).items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", STATISTICS)
def test_the_record_holds_the_penalty_itself(name: str, problem: tuple[Federation, Network]) -> None:
    federation, model = problem
    result = train(federation, model, Algorithm(penalty=name), rounds=1, learning_rate=0.1)
    right = penalty_of(name, model, federation, "mean").item()
    assert result.history[0]["penalty"] == pytest.approx(right, rel=1e-9)


@pytest.mark.parametrize("name", STATISTICS)
def test_chunks_change_nothing(
    name: str, problem: tuple[Federation, Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, model = problem
    algorithm = Algorithm(penalty=name, optimizer="sgd")
    whole = step_of(federation, model, algorithm)
    monkeypatch.setattr("fedilc.gradients.computation.ModelRunner.most_examples", lambda *_: 2)
    cut = step_of(federation, model, algorithm)
    for key, value in whole.items():
        torch.testing.assert_close(cut[key], value, rtol=1e-9, atol=1e-11)


def test_a_penalty_of_ones_own_is_one_class(problem: tuple[Federation, Network]) -> None:
    from fedilc.penalties import VREx

    federation, model = problem

    class Doubled(VREx):
        """Twice the risk, so that the penalty is four times as large."""

        def value(self, total: object) -> Tensor:
            return 2 * super().value(total)

    own = train(federation, model, Algorithm(penalty=Doubled()), rounds=1, learning_rate=0.1)
    plain = train(federation, model, Algorithm(penalty="vrex"), rounds=1, learning_rate=0.1)
    assert own.history[0]["penalty"] == pytest.approx(4 * plain.history[0]["penalty"], rel=1e-9)
