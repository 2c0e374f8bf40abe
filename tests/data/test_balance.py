"""Classes that count equally: by weights, by repeats, in every algorithm, and refused without classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from command import Refusal
from hypothesis import given
from hypothesis import strategies as st
from networks import mlp
from torch import Tensor, nn
from torch.nn import functional

from fedilc import Algorithm, Federation, Silo, train, weighted_geometric_mean
from fedilc.data.balance import class_weights, oversampled_rows
from fedilc.errors import ConfigError

LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=30).map(torch.tensor)


@given(LABELS)
def test_every_class_that_occurs_has_the_same_weight_and_all_sum_to_the_examples(y: Tensor) -> None:
    weights = torch.tensor(class_weights(y))[y]
    assert weights.sum().item() == pytest.approx(len(y), rel=1e-5)
    totals = {weights[y == label].sum().item() for label in y.unique()}
    assert max(totals) == pytest.approx(min(totals), rel=1e-5)


@given(LABELS, st.integers(0, 1000))
def test_oversampled_rows_hold_every_example_and_each_class_equally_often(y: Tensor, seed: int) -> None:
    rows = oversampled_rows(y, torch.Generator().manual_seed(seed))
    assert rows[: len(y)].tolist() == list(range(len(y)))
    counts = y[rows].unique(return_counts=True)[1]
    assert set(counts.tolist()) == {int(y.unique(return_counts=True)[1].max())}


def rare(generator: torch.Generator) -> Federation:
    """Two silos in which class 1 is rare."""
    silos = []
    for name in "ab":
        x = torch.randn(20, 6, generator=generator, dtype=torch.float64)
        silos.append(
            Silo(name, x, (torch.arange(20) < 4).long(), x[:6] + 1, torch.tensor([1, 1, 0, 0, 0, 0]))
        )
    return Federation("rare", silos)


def step(federation: Federation, model: nn.Module, **options: Any) -> list[Tensor]:
    result = train(
        federation, model, "fedsgd", rounds=1, learning_rate=1.0, optimizer="sgd", outlier_factor=0, **options
    )
    pairs = zip(model.parameters(), result.model.parameters(), strict=True)
    return [(before - after).detach() for before, after in pairs]


def test_weights_step_along_the_mean_of_the_classes_mean_losses(generator: torch.Generator) -> None:
    federation, model = rare(generator), mlp().double()
    total = torch.zeros((), dtype=torch.float64)
    for silo in federation.silos:
        losses = functional.binary_cross_entropy_with_logits(
            model(silo.x)[:, 0], silo.y.double(), reduction="none"
        )
        total = total + (losses[silo.y == 0].mean() + losses[silo.y == 1].mean()) / 4
    expected = torch.autograd.grad(total, list(model.parameters()))
    for found, right in zip(step(federation, model, balance="weights"), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-12)


def test_weights_leave_votes_equal_and_scale_the_factors_of_the_geometric_mean(
    generator: torch.Generator,
) -> None:
    federation, model = rare(generator), mlp().double()
    (silo, _), parameters = federation.silos, list(model.parameters())
    alone = Federation("alone", [silo])
    votes = []
    for x, y, weight in zip(silo.x, silo.y, torch.tensor(class_weights(silo.y))[silo.y], strict=True):
        loss = functional.binary_cross_entropy_with_logits(model(x[None])[0, 0], y.double())
        votes.append([weight * g for g in torch.autograd.grad(loss, parameters)])
    trained = train(
        alone, model, Algorithm(intra="geometric", optimizer="sgd"), rounds=1, learning_rate=1.0,
        environment_size=1, balance="weights", outlier_factor=0,
    ).model  # fmt: skip
    for place, (before, after) in enumerate(zip(parameters, trained.parameters(), strict=True)):
        expected = weighted_geometric_mean(torch.stack([vote[place] for vote in votes]))
        torch.testing.assert_close((before - after).detach(), expected.to(before), rtol=1e-6, atol=1e-9)


def test_an_example_counts_by_its_weight_squared_in_the_second_moment_of_fishr(
    generator: torch.Generator,
) -> None:
    federation, model = rare(generator), mlp().double()

    def weighted(silo: Silo) -> tuple[Tensor, Tensor]:
        """The weights, and every example's unweighted classifier gradient (sigmoid(f) - y) [z; 1]."""
        z = model[:-1](silo.x)
        rest = torch.sigmoid(model[-1](z)[:, 0]) - silo.y
        w = torch.tensor(class_weights(silo.y), dtype=torch.float64)[silo.y]
        return w, rest[:, None] * torch.cat([z, torch.ones(len(z), 1)], 1)

    statistics = []
    for silo in federation.silos:
        w, g = weighted(silo)
        mean = (w[:, None] * g).mean(0)
        statistics.append((w[:, None] ** 2 * g**2).mean(0) - mean**2)
    every = torch.stack(statistics)
    penalty = (every - every.mean(0)).square().sum() / len(every)
    expected = torch.autograd.grad(penalty, list(model.parameters()))
    plain = step(federation, model, balance="weights")
    matched = step(federation, model, balance="weights", penalty="fishr", penalty_weight=1.0)
    for before, after, right in zip(plain, matched, expected, strict=True):
        torch.testing.assert_close(after - before, right, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("balance", ["weights", "oversample"])
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("fishr-intra-geo", {"environment_size": 1}), ("fedavg", {"batch_size": 7}), ("irm", {})],
)
def test_balance_changes_what_votes_local_steps_and_penalties_train_and_not_what_is_measured(
    algorithm: str, options: dict[str, Any], balance: str, generator: torch.Generator
) -> None:
    federation, model = rare(generator), mlp().double()
    options |= {"rounds": 2, "learning_rate": 0.1}
    plain = train(federation, model, algorithm, balance="none", **options).history
    found = train(federation, model, algorithm, balance=balance, **options).history
    assert plain[0]["train_loss"] != found[0]["train_loss"]
    assert found[0]["silos"]["a"]["examples"] == 20
    assert found[0]["silos"]["a"]["validation_examples"] == 6


def test_single_examples_vote_alike_by_rules_and_by_vmap_under_weights(generator: torch.Generator) -> None:
    class Plain(nn.Module):
        """The same network, whose layers have no rule."""

        def __init__(self, model: nn.Sequential) -> None:
            super().__init__()
            self.parts = nn.ParameterList(model.parameters())

        def forward(self, x: Tensor) -> Tensor:
            *hidden, weight, bias = self.parts
            x = torch.relu(functional.linear(x, hidden[0], hidden[1]))
            return functional.linear(x, weight, bias)

    federation = rare(generator)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    options = {"rounds": 1, "learning_rate": 0.1, "balance": "weights", "environment_size": 1}
    votes = Algorithm(intra="geometric")
    one, other = (train(federation, each, votes, **options).model for each in (model, Plain(model)))
    for left, right in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right)


def test_balance_is_refused_for_quantities_and_unknown_ways_by_name(refusal: Refusal) -> None:
    silo = Silo("a", [[0.0], [1.0]], [0.5, 2.5])
    with pytest.raises(ConfigError, match=r"balance='weights' balances classes, but loss='huber'"):
        train(
            Federation("f", [silo], loss="huber"), nn.Linear(1, 1), "fedsgd",
            rounds=1, learning_rate=0.1, balance="weights",
        )  # fmt: skip
    assert "balance='wieghts' is not valid" in refusal("run", "--balance", "wieghts")
