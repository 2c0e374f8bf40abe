"""The numbers of the paper's tables, under the names that fedilc has for them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from fedilc.evaluation.campaign import DOMAIN_ACCURACY

BENCHMARKS = ("color-mnist", "rotated-cifar10", "eicu")
ORDER = ("fedsgd", "geometric", "fedcurv", "fishr-inter-geo", "fishr-intra-arith", "fishr-intra-geo")

_OTHER_DATA = ("eicu-demo", "eicu-synthetic")
# The paper's areas are those of thresholded predictions, so they are compared with our thresholded ones.
_TABLES = {
    "test_loss": "ood_loss",
    "test_accuracy": "ood_accuracy",
    "test_thresholded_auroc": "aucroc",
    "test_thresholded_auprc": "aucpr",
}
_FAIRNESS = {"domain_fairness_variance": "variance_x1000", "domain_fairness_entropy": "entropy_x10"}
_FACTORS = {"fairness_variance": 1000.0, "fairness_entropy": 10.0}


@dataclass(frozen=True)
class PaperNumber:
    """A mean and deviation as the paper prints them."""

    mean: float
    std: float


def paper_benchmark(campaign: str) -> str | None:
    """Return the paper's benchmark that a campaign is a variant of; None if it is not one.

    >>> paper_benchmark("eicu-synthetic"), paper_benchmark("color-digits")
    ('eicu', None)
    """
    return next((name for name in BENCHMARKS if campaign == name or campaign.startswith(f"{name}-")), None)


def on_the_papers_data(campaign: str) -> bool:
    """Return whether a campaign has the paper's data, so that their numbers can be compared.

    >>> on_the_papers_data("eicu"), on_the_papers_data("eicu-demo")
    (True, False)
    """
    return paper_benchmark(campaign) is not None and campaign not in _OTHER_DATA


def paper_numbers(benchmark: str | None, metric: str) -> dict[str, PaperNumber]:
    """Return the paper's numbers for one of our metrics, by algorithm; empty if it prints none.

    >>> paper_numbers("color-mnist", "test_loss")["fishr-inter-geo"]
    PaperNumber(mean=0.542, std=0.006)
    >>> paper_numbers("color-mnist", "test_auroc")
    {}
    """
    tables, factor = _tables(), paper_factor(metric)
    found: dict[str, Any] = {}
    if metric in _TABLES:
        found = tables[_TABLES[metric]].get(benchmark, {})
    elif benchmark == "rotated-cifar10" and metric in _FAIRNESS:
        found = tables["fairness_rotated_cifar10"][_FAIRNESS[metric]]
    elif benchmark == "rotated-cifar10" and metric.startswith(DOMAIN_ACCURACY):
        rows = {degrees: row for row, degrees in tables["sub_environment_rotation"].items()}
        row = rows.get(metric.rsplit(" ", 1)[1], "")
        found = tables["sub_environment_accuracy_rotated_cifar10"].get(row, {})
    return {name: PaperNumber(n["mean"] / factor, n["std"] / factor) for name, n in found.items()}


def paper_factor(metric: str) -> float:
    """Return the factor by which the paper multiplies a metric before it prints it.

    >>> paper_factor("domain_fairness_variance"), paper_factor("test_loss")
    (1000.0, 1.0)
    """
    return next((factor for end, factor in _FACTORS.items() if metric.endswith(end)), 1.0)


def in_paper_order(names: Iterable[str]) -> list[str]:
    """Return the paper's algorithms in the order of its tables, then the others in their given order.

    >>> in_paper_order(["mine", "geometric", "fedsgd"])
    ['fedsgd', 'geometric', 'mine']
    """
    given = list(names)
    return [name for name in ORDER if name in given] + [name for name in given if name not in ORDER]


@cache
def _tables() -> dict[str, Any]:
    text = (files("fedilc.report.campaign") / "paper_tables.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables
