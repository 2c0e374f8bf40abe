"""The examples of docs/how-to/tasks.md do what the page says: a loss and a metric of one's own, in a run."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from fedilc import Federation, Silo, train
from fedilc.algorithms.loss_registry import LOSSES
from fedilc.algorithms.metric_registry import METRICS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "tasks.md"


@pytest.fixture(autouse=True)
def _examples() -> Iterator[None]:
    page = doctest.DocTestParser().get_doctest(PAGE.read_text(), {}, PAGE.name, str(PAGE), 0)
    outcome = doctest.DocTestRunner().run(page, clear_globs=False)
    assert outcome.attempted > 0
    assert outcome.failed == 0
    yield
    LOSSES.unregister("focal")
    METRICS.unregister("recall")


def test_a_run_takes_the_loss_and_the_metric_of_the_page(generator: torch.Generator) -> None:
    x, x_val = torch.randn(2, 20, 3, generator=generator)
    silo = Silo("a", x, x[:, 0] > 0, x_val, x_val[:, 0] > 0)
    given = {"rounds": 2, "learning_rate": 0.1, "loss": "focal", "metrics": ["recall"]}
    history = train(Federation("f", [silo]), nn.Linear(3, 1), "fishr-inter-geo", **given).history
    assert 0 <= history[-1]["validation_recall"] <= 1


def test_the_focal_loss_of_the_page_is_its_formula(generator: torch.Generator) -> None:
    logits = torch.randn(9, generator=generator, dtype=torch.float64)
    y = (torch.arange(9) % 2).double()
    chance = torch.where(y > 0.5, 1 / (1 + (-logits).exp()), 1 / (1 + logits.exp()))
    found = LOSSES.get("focal").function(logits, y)
    torch.testing.assert_close(found, -((1 - chance) ** 2) * chance.log())
