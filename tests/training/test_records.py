"""The shape of a history's records."""

from __future__ import annotations

import torch
from torch import nn

from fedilc import Federation, Silo, train
from fedilc.evaluation import fairness


def test_a_silo_with_sub_domains_is_also_measured_by_sub_domain() -> None:
    x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    y, wrong = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 0])
    silos = [
        Silo("a", x, y, x, wrong, domains=["near", "far", "near", "far"]),
        Silo("b", x, y, x, y, domains=["here"] * 4),
    ]
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.zero_()
    record = train(Federation("f", silos), model, "fedsgd", rounds=1, learning_rate=1e-6).history[0]
    near, far = (record["silos"]["a"]["validation_domains"][name] for name in ("near", "far"))
    assert (near["accuracy"], near["examples"]) == (1.0, 2)
    assert (far["accuracy"], far["examples"]) == (0.5, 2)
    assert record["silos"]["a"]["validation_accuracy"] == 0.75
    assert record["silos"]["a"]["validation_loss"] == (near["loss"] + far["loss"]) / 2
    assert record["domain_fairness"] == fairness({"a near": 1.0, "a far": 0.5, "b here": 1.0})
    assert record["fairness"] == fairness({"a": 0.75, "b": 1.0})


def test_a_federation_without_sub_domains_has_no_word_of_them() -> None:
    x, y = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), [0, 1, 0, 1, 0, 1]
    record = train(
        Federation("f", [Silo("a", x, y, x + 1, y)], x - 1, y),
        nn.Linear(2, 1),
        "fedsgd",
        rounds=1,
        learning_rate=0.1,
    ).history[0]
    assert "domain_fairness" not in record
    assert "validation_domains" not in record["silos"]["a"]
    assert "test_thresholded_auroc" not in record


def test_the_authors_areas_are_recorded_when_asked_for() -> None:
    x, y = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)), [0, 1, 0, 1, 0, 1, 0, 1, 0]
    record = train(
        Federation("f", [Silo("a", x, y)], x - 1, y),
        nn.Linear(2, 1),
        "fedsgd",
        rounds=1,
        learning_rate=0.1,
        thresholded_batch=4,
    ).history[0]
    assert 0 <= record["test_thresholded_auroc"] <= 1
    assert 0 <= record["test_thresholded_auprc"] <= 1
