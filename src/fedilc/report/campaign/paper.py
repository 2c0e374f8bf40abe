"""The numbers of the paper's tables, under the names that fedilc has for them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from fedilc.evaluation.campaign import DOMAIN_ACCURACY, Campaign
from fedilc.evaluation.significance import spread
from fedilc.report.cells import NOTHING, mean_cell, spread_cell
from fedilc.report.table_formats import Cell

BENCHMARKS = ("color-mnist", "rotated-cifar10", "eicu")
ORDER = ("fedsgd", "geometric", "fedcurv", "fishr-inter-geo", "fishr-intra-arith", "fishr-intra-geo")

FAR = 2.0
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


def our_cell(campaign: Campaign, algorithm: str, criterion: str, metric: str, scale: float = 1.0) -> Cell:
    """Return one algorithm's mean over seeds; the text says so if not every seed has the number."""
    values = list(campaign.values(algorithm, criterion, metric).values())
    return mean_cell(values, scale, len(campaign.numbers.get(algorithm, {}).get(criterion, {})))


def paper_cell(number: PaperNumber | None, scale: float = 1.0) -> Cell:
    """Return the paper's mean and deviation.

    >>> paper_cell(PaperNumber(0.542, 0.006)).text
    '0.542±0.006'
    """
    return NOTHING if number is None else spread_cell(scale * number.mean, scale * number.std)


def distance_cell(values: Sequence[float], number: PaperNumber | None, lower: bool) -> Cell:
    """Return the difference of our mean to the paper's, in its deviations; with ! if ours is much worse.

    >>> distance_cell([0.572], PaperNumber(0.566, 0.009), True).text
    '+0.7'
    >>> distance_cell([0.600], PaperNumber(0.566, 0.009), True).text
    '+3.8!'
    """
    if number is None or not values:
        return NOTHING
    count = (spread(values)[0] - number.mean) / number.std
    reading = "within two" if abs(count) <= FAR else "better" if (count < 0) == lower else "worse"
    shown = f"{round(count, 1) + 0.0:+.1f}"  # + 0.0 turns -0.0 into 0.0
    return Cell(shown + "!" * (reading == "worse"), parts=(f"{count:.3f}", reading))
