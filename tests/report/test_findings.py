"""The sentence that ends `fedilc run` follows from the numbers of the runs."""

from __future__ import annotations

from typing import Any

import pytest

from fedilc.algorithms import get
from fedilc.report.run_tables import finding

MEAN = "the weighted geometric mean"
FOUR = ("fedsgd", "geometric", "fedcurv", "fishr-inter-geo")


def ended(silos: float | None, site: float | None) -> list[dict[str, Any]]:
    return [{"round": 1}, {"round": 2, "validation_accuracy": silos, "test_accuracy": site}]


def told_of(*site: float, names: tuple[str, ...] = FOUR) -> str:
    histories = {name: ended(0.8, value) for name, value in zip(names, site, strict=True)}
    found = finding(histories, {name: get(name) for name in names})
    assert found is not None
    return found


def test_with_and_without_each_part_the_sentence_has_the_effect_of_each_and_of_both() -> None:
    assert told_of(0.38, 0.35, 0.69, 0.70) == (
        "In this run, compared with fedsgd, the accuracy at the new site changes by +31 points with the "
        "Fishr penalty, by -3 points with the weighted geometric mean, and by +32 points with both: here the "
        "Fishr penalty does the work, and the weighted geometric mean does not."
    )


@pytest.mark.parametrize(
    ("site", "told"),
    [
        ((0.64, 0.75, 0.64, 0.74), f"here {MEAN} does the work, and the Fishr penalty does not."),
        ((0.50, 0.60, 0.62, 0.70), "here both help."),
        ((0.50, 0.54, 0.52, 0.53), "here neither helps clearly."),
        ((0.50, 0.40, 0.30, 0.20), "here neither helps clearly."),
        ((0.50, 0.50, 0.50, 0.80), "here the effect of one depends on the other."),
        ((0.50, 0.80, 0.70, 0.70), "here the effect of one depends on the other."),
        ((0.50, 0.80, 0.50, 0.51), "here the effect of one depends on the other."),
    ],
    ids=["mean", "both", "neither", "harm", "only together", "one is enough", "one spoils the other"],
)
def test_a_part_does_the_work_only_if_it_helps_with_and_without_the_other(
    site: tuple[float, ...], told: str
) -> None:
    assert told_of(*site).endswith(f" points with both: {told}")


def test_the_order_of_the_two_in_between_does_not_matter() -> None:
    order = ("fedsgd", "fedcurv", "geometric", "fishr-inter-geo")
    assert told_of(0.38, 0.69, 0.35, 0.70, names=order) == told_of(0.38, 0.35, 0.69, 0.70)


@pytest.mark.parametrize(
    "names",
    [
        ("fedsgd", "fishr-inter-geo"),
        ("fedsgd", "geometric", "fishr-inter-geo"),
        ("fedsgd", "geometric", "vrex", "fishr-inter-geo"),
        ("fedsgd", "geometric", "fedcurv", "fishr-inter-geo-local"),
    ],
)
def test_without_a_run_for_each_part_the_last_is_compared_with_the_first(names: tuple[str, ...]) -> None:
    told = told_of(*[0.3, 0.4, 0.5, 0.6][: len(names)], names=names)
    assert told.startswith("In this run, fedsgd is right in 80 % of the cases at the silos and in 30 % ")
    assert f", and {names[-1]} in 80 % and " in told


@pytest.mark.parametrize(
    ("reference", "method", "told"),
    [
        (
            (0.84, 0.33),
            (0.77, 0.64),
            "fedsgd learnt more of what helps at the silos and misleads at the new site.",
        ),
        ((0.84, 0.33), (0.90, 0.64), "fedcurv is the better one at both."),
        ((0.84, 0.50), (0.77, 0.53), "neither is clearly better at the new site."),
        ((0.84, 0.64), (0.90, 0.33), "fedsgd is the better one at the new site."),
    ],
)
def test_two_runs_are_compared_at_the_silos_and_at_the_new_site(
    reference: tuple[float, float], method: tuple[float, float], told: str
) -> None:
    histories = {"fedsgd": ended(*reference), "fedcurv": ended(*method)}
    numbers = [round(100 * value) for value in (*reference, *method)]
    assert finding(histories, {name: get(name) for name in histories}) == (
        "In this run, fedsgd is right in {} % of the cases at the silos and in {} % at the new site, and "
        "fedcurv in {} % and {} %: ".format(*numbers)
        + told
    )


def test_without_accuracies_there_is_no_sentence() -> None:
    parts = {"fedsgd": get("fedsgd"), "fedcurv": get("fedcurv")}
    assert finding({"fedsgd": ended(0.8, None), "fedcurv": ended(0.7, 0.6)}, parts) is None
    assert finding({"fedsgd": [{"round": 1}], "fedcurv": [{"round": 1}]}, parts) is None
