"""`fedilc list`: everything that can be named on the command line."""

from __future__ import annotations

from command import fedilc
from worked_examples import OWN_ALGORITHM, OWN_PENALTY

from fedilc import algorithms
from fedilc.config import shipped_experiments
from fedilc.models import MODELS


def test_every_algorithm_experiment_and_model_has_a_line_with_its_summary() -> None:
    lines = [line.split(maxsplit=1) for line in fedilc("list").splitlines()]
    described = {line[0] for line in lines if len(line) == 2}
    known = {*algorithms.names(), *shipped_experiments(), *MODELS}
    assert described == known - {OWN_ALGORITHM, OWN_PENALTY}


def test_the_three_groups_have_titles() -> None:
    lines = [line.strip() for line in fedilc("list").splitlines()]
    assert [line for line in lines if line in ("algorithms", "experiments", "models")] == [
        "algorithms",
        "experiments",
        "models",
    ]
