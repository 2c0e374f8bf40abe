"""The paper's numbers: as printed in it, under our names, and only where they may be compared."""

from __future__ import annotations

import pytest

from fedilc import algorithms
from fedilc.paper.claims import (
    BENCHMARKS,
    ORDER,
    in_paper_order,
    on_the_papers_data,
    paper_benchmark,
    paper_numbers,
)


@pytest.mark.parametrize(
    ("benchmark", "metric", "algorithm", "mean", "std"),
    [
        ("color-mnist", "test_loss", "fedsgd", 0.566, 0.009),
        ("rotated-cifar10", "test_loss", "fishr-intra-geo", 1.648, 0.006),
        ("eicu", "test_accuracy", "geometric", 0.900, 0.005),
        ("color-mnist", "test_thresholded_auroc", "fishr-inter-geo", 0.789, 0.002),
        ("eicu", "test_thresholded_auprc", "fedcurv", 0.217, 0.018),
        ("rotated-cifar10", "domain_fairness_variance", "fedsgd", 0.000809, 0.000251),
        ("rotated-cifar10", "domain_fairness_entropy", "fedcurv", 2.1955, 0.0003),
        ("rotated-cifar10", "domain_accuracy: silo-1 10°", "fishr-intra-geo", 0.456, 0.017),
        ("rotated-cifar10", "domain_accuracy: silo-2 75°", "fishr-inter-geo", 0.443, 0.009),
        ("rotated-cifar10", "domain_accuracy: any name -90°", "fedsgd", 0.371, 0.010),
    ],
)
def test_a_number_of_the_paper_is_found_under_our_name_for_it(
    benchmark: str, metric: str, algorithm: str, mean: float, std: float
) -> None:
    found = paper_numbers(benchmark, metric)[algorithm]
    assert (found.mean, found.std) == (pytest.approx(mean), pytest.approx(std))


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("metric", ["test_loss", "test_accuracy"])
def test_loss_and_accuracy_are_there_for_all_six_algorithms_on_all_three_benchmarks(
    benchmark: str, metric: str
) -> None:
    assert paper_numbers(benchmark, metric).keys() == set(algorithms.PAPER)


@pytest.mark.parametrize(
    ("benchmark", "metric"),
    [
        ("color-mnist", "test_auroc"),
        ("rotated-cifar10", "test_thresholded_auroc"),
        ("color-mnist", "domain_fairness_variance"),
        ("rotated-cifar10", "fairness_variance"),
        ("rotated-cifar10", "domain_accuracy: silo-1 11°"),
        ("color-mnist", "domain_accuracy: silo-1 10°"),
        (None, "test_loss"),
    ],
)
def test_what_the_paper_does_not_print_is_empty(benchmark: str | None, metric: str) -> None:
    assert paper_numbers(benchmark, metric) == {}


@pytest.mark.parametrize(
    ("campaign", "benchmark", "same"),
    [
        ("color-mnist", "color-mnist", True),
        ("color-mnist-mean", "color-mnist", True),
        ("eicu", "eicu", True),
        ("eicu-demo", "eicu", False),
        ("eicu-synthetic", "eicu", False),
        ("color-digits", None, False),
        ("color-mnistish", None, False),
    ],
)
def test_a_campaign_is_compared_with_the_benchmark_it_has_the_data_of(
    campaign: str, benchmark: str | None, same: bool
) -> None:
    assert (paper_benchmark(campaign), on_the_papers_data(campaign)) == (benchmark, same)


def test_the_papers_order_has_every_algorithm_of_the_paper_and_strangers_come_last() -> None:
    assert set(ORDER) == set(algorithms.PAPER)
    assert in_paper_order(["mine", *reversed(ORDER), "yours"]) == [*ORDER, "mine", "yours"]
