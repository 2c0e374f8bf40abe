"""One round of each algorithm against a plain re-derivation: autograd over stacked data, no code of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from networks import NETWORK_ALGORITHMS, mlp
from steps import stepped_gradient
from torch import Tensor, nn
from torch.nn import functional

from fedilc import Federation, Silo, algorithms, train
from fedilc.gradients.environments import lay_out, lay_out_mean

LAMBDA = 3.0
ENVIRONMENT = 4


def federation_of(generator: torch.Generator) -> Federation:
    silos = []
    for e, examples in enumerate((11, 9, 14)):
        x = torch.randn(examples, 6, generator=generator, dtype=torch.float64) + 0.4 * e
        silos.append(Silo(f"s{e}", x, torch.randint(0, 2, (examples,), generator=generator)))
    return Federation("f", silos)


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.double(), reduction="none")


def geometric(stack: Tensor) -> Tensor:
    """The formula of the paper, with products, coordinate by coordinate."""
    result = torch.zeros_like(stack[0])
    for sign in (1.0, -1.0):
        side = stack * sign > 0
        members = side.double().sum(0)
        product = stack.abs().where(side, 1.0).prod(0)
        result += sign * members / len(stack) * product ** (1 / members.clamp(min=1))
    return result


def gradients(model: nn.Module, value: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(model.parameters()), retain_graph=True))


def combine(rows: list[list[Tensor]], geo: bool) -> list[Tensor]:
    stacks = [torch.stack(column) for column in zip(*rows, strict=True)]
    return [geometric(stack) if geo else stack.mean(0) for stack in stacks]


def fishr_gradient(model: nn.Module, federation: Federation) -> list[Tensor]:
    classifier = model[-1]
    variances = []
    for silo in federation.silos:
        samples = [
            torch.cat(
                [
                    g.flatten()
                    for g in torch.autograd.grad(v, list(classifier.parameters()), create_graph=True)
                ]
            )
            for v in losses(model, silo.x, silo.y)
        ]
        variances.append(torch.stack(samples).var(0, unbiased=False))
    stack = torch.stack(variances)
    return gradients(model, (stack - stack.mean(0)).square().sum(1).mean())


def derived(name: str, model: nn.Module, federation: Federation, size: int) -> list[Tensor]:
    """What the paper says the server steps with."""
    entry = algorithms.get(name)
    rows = []
    for silo in federation.silos:
        groups = [torch.arange(len(silo))]
        if entry.intra != "whole":
            order = lay_out(len(silo), size, 10**6, 0, 1, silo.name).order
            groups = list((torch.arange(len(silo)) if order is None else order).split(size))
        votes = [gradients(model, losses(model, silo.x[g], silo.y[g]).mean()) for g in groups]
        rows.append(combine(votes, entry.intra == "geometric"))
    total = combine(rows, entry.inter == "geometric")
    if entry.penalty:
        total = [g + LAMBDA * p for g, p in zip(total, fishr_gradient(model, federation), strict=True)]
    return total


@pytest.mark.parametrize("size", [1, ENVIRONMENT])
@pytest.mark.parametrize("name", algorithms.PAPER)
def test_a_round_equals_its_plain_re_derivation(
    name: str, size: int, generator: torch.Generator, tmp_path: Path
) -> None:
    federation, model = federation_of(generator), mlp().double()
    expected = derived(name, model, federation, size)
    found, result = stepped_gradient(
        federation, model, name, tmp_path / "run", penalty_weight=LAMBDA, environment_size=size
    )
    for value, right in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-9, atol=1e-12)
    mean_loss = sum(losses(model, s.x, s.y).mean().item() for s in federation.silos) / 3
    assert result.history[0]["train_loss"] == pytest.approx(mean_loss, rel=1e-9)


@pytest.mark.parametrize("name", algorithms.PAPER)
def test_the_step_is_adam_with_l2_weight_decay(name: str, generator: torch.Generator) -> None:
    federation, model = federation_of(generator), mlp().double()
    result = train(
        federation,
        model,
        name,
        rounds=1,
        learning_rate=0.01,
        weight_decay=0.1,
        penalty_weight=LAMBDA,
        environment_size=ENVIRONMENT,
    )
    expected = mlp().double()
    optimizer = torch.optim.Adam(expected.parameters(), lr=0.01, weight_decay=0.1)
    for parameter, value in zip(
        expected.parameters(), derived(name, model, federation, ENVIRONMENT), strict=True
    ):
        parameter.grad = value
    optimizer.step()
    for found, right in zip(result.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", algorithms.PAPER)
def test_training_leaves_the_model_passed_in_untouched_and_lowers_the_loss(
    name: str, generator: torch.Generator
) -> None:
    federation, model = federation_of(generator), mlp()
    before = [parameter.clone() for parameter in model.parameters()]
    result = train(
        federation, model, name, rounds=40, learning_rate=0.02, penalty_weight=0.1, environment_size=4
    )
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert len(result.history) == 40
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    assert next(result.model.parameters()).dtype == torch.float32


@pytest.mark.parametrize("name", NETWORK_ALGORITHMS)
def test_the_same_call_twice_gives_the_same_bits_and_another_seed_others(
    name: str, generator: torch.Generator
) -> None:
    federation = federation_of(generator)
    runs = [
        train(federation, mlp(), name, rounds=4, learning_rate=0.02, environment_size=3, seed=seed)
        for seed in (1, 1, 2)
    ]
    weights = [torch.cat([p.detach().flatten() for p in run.model.parameters()]) for run in runs]
    assert torch.equal(weights[0], weights[1])
    assert runs[0].history == runs[1].history
    if name == "fishr-intra-geo":
        assert not torch.equal(weights[0], weights[2])


def test_dropout_is_random_but_private_and_the_same_in_both_steps(generator: torch.Generator) -> None:
    federation = federation_of(generator)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
    state = torch.random.get_rng_state()
    first = train(federation, model, "fishr-inter-geo", rounds=3, learning_rate=0.02)
    second = train(federation, model, "fishr-inter-geo", rounds=3, learning_rate=0.02)
    other = train(federation, model, "fishr-inter-geo", rounds=3, learning_rate=0.02, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    assert first.history == second.history
    assert first.history != other.history


def test_penalty_annealing_changes_lambda_after_the_given_rounds(generator: torch.Generator) -> None:
    result = train(
        federation_of(generator),
        mlp(),
        "fedcurv",
        rounds=4,
        learning_rate=0.01,
        penalty_weight=7.0,
        penalty_anneal_rounds=2,
        penalty_start=0.5,
    )
    assert [record["penalty_weight"] for record in result.history] == [0.5, 0.5, 7.0, 7.0]


def test_a_start_of_zero_skips_the_statistics_until_the_penalty_begins(generator: torch.Generator) -> None:
    result = train(
        federation_of(generator),
        mlp(),
        "fedcurv",
        rounds=2,
        learning_rate=0.01,
        penalty_weight=7.0,
        penalty_anneal_rounds=1,
        penalty_start=0.0,
    )
    assert "penalty" not in result.history[0]
    assert result.history[1]["penalty"] > 0


@pytest.mark.parametrize(
    ("sizes", "environment_size", "same"),
    [((400, 64), 16, True), ((400, 64), 1, True), ((40, 64), 64, True), ((400, 64), 32, False)],
)
def test_the_mean_over_environments_is_fedcurv_if_those_of_a_silo_are_of_one_size(
    sizes: tuple[int, int], environment_size: int, same: bool, generator: torch.Generator
) -> None:
    """Of 400 examples in 32s, twelve environments are whole and the last has 16, which count twice."""
    silos = []
    for e, examples in enumerate(sizes):
        x = torch.randn(examples, 6, generator=generator) + 0.4 * e
        silos.append(Silo(f"s{e}", x, torch.randint(0, 2, (examples,), generator=generator)))
    arith, whole = (
        train(
            Federation("f", silos),
            mlp(),
            name,
            rounds=2,
            learning_rate=0.01,
            environment_size=environment_size,
        )
        for name in ("fishr-intra-arith", "fedcurv")
    )
    pairs = list(zip(arith.model.parameters(), whole.model.parameters(), strict=True))
    assert all(torch.equal(one, other) for one, other in pairs) == same
    assert (arith.history == whole.history) == same


def test_the_members_of_a_smaller_last_environment_count_as_much_more_as_it_is_smaller() -> None:
    weights = lay_out_mean(lay_out(400, 32, 10**6, seed=0, round_=1, silo="a"), 10**6).weights
    assert weights is not None
    values, counts = weights.unique(return_counts=True)
    assert counts.tolist() == [384, 16]
    assert float(values[1] / values[0]) == pytest.approx(2.0)
