"""Metrics by name: what each task has, their directions, and what cannot be registered."""

from __future__ import annotations

import pytest
import torch

from fedilc.algorithms.metric_registry import METRICS, metric_of, metrics_of, register
from fedilc.errors import ConfigError
from fedilc.evaluation import measure
from fedilc.gradients import Loss


@pytest.mark.parametrize("loss", ["binary", "multiclass", "regression", "huber"])
def test_a_run_measures_the_declared_metrics_of_its_task(loss: str) -> None:
    logits = torch.randn(30, 3 if loss == "multiclass" else 1, generator=torch.Generator().manual_seed(0))
    y = torch.arange(30) % 2
    found = measure(Loss(loss), logits, Loss(loss).labels(y, torch.float32))
    assert [*metrics_of(loss), "examples"] == list(found)


def test_a_metric_is_found_by_the_key_of_a_record() -> None:
    assert metric_of("validation_auroc") is METRICS.get("auroc")
    assert metric_of("fairness") is None


def test_what_cannot_be_a_metric_is_named() -> None:
    with pytest.raises(TypeError, match="was given int as the metric 'seven'; give a function"):
        register("seven", 7, higher_is_better=True)
    for name in ("examples", "a b", 7):
        with pytest.raises(ConfigError, match="cannot be the name of a metric; use letters, digits"):
            register(name, max, higher_is_better=True)
    with pytest.raises(ConfigError, match="task='clases' is unknown"):
        register("share", max, higher_is_better=True, tasks=("clases",))
    with pytest.raises(ConfigError, match="there is already a metric 'r2'"):
        register("r2", max, higher_is_better=True)
