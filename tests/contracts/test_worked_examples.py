"""The worked examples of the page do what it says; `OTHERS` runs them on every runtime."""

from __future__ import annotations

import torch
from torch import nn
from worked_examples import OWN_ALGORITHM, OWN_PENALTY

from fedilc import Federation, Silo, algorithms, train


def problem(generator: torch.Generator) -> tuple[Federation, nn.Module]:
    silos = []
    for number in range(3):
        x = torch.randn(9, 4, generator=generator, dtype=torch.float64) + number
        silos.append(Silo(f"silo {number}", x, (x[:, 0] > number).long()))
    model = nn.Linear(4, 1).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return Federation("f", silos), model


def test_the_algorithm_of_the_page_is_one_entry_with_the_parts_it_names(generator: torch.Generator) -> None:
    entry = algorithms.get(OWN_ALGORITHM)
    assert (entry.inter, entry.penalty, entry.optimizer) == ("geometric", "coral", "sgd")
    result = train(*problem(generator), OWN_ALGORITHM, rounds=3, learning_rate=1.0)
    assert result.history[-1]["penalty"] > 0


def test_the_penalty_of_the_page_is_the_variance_of_the_mean_logit(generator: torch.Generator) -> None:
    federation, model = problem(generator)
    means = torch.stack([model(silo.x).mean() for silo in federation.silos])
    penalty = (means - means.mean()).square().mean()
    expected = torch.autograd.grad(penalty, list(model.parameters()), materialize_grads=True)
    plain, matched = (
        train(federation, model, name, rounds=1, learning_rate=1.0, optimizer="sgd", outlier_factor=0)
        for name in ("fedsgd", OWN_PENALTY)
    )
    assert abs(matched.history[0]["penalty"] - float(penalty.detach())) < 1e-12
    pairs = zip(plain.model.parameters(), matched.model.parameters(), expected, strict=True)
    for without, with_penalty, gradient in pairs:
        torch.testing.assert_close(without - with_penalty, gradient, rtol=1e-9, atol=1e-12)
