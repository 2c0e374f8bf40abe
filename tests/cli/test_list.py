"""`fedilc list`: everything that can be named on the command line."""

from __future__ import annotations

from command import Refusal, fedilc
from worked_examples import OWN_ALGORITHM, OWN_PENALTY

from fedilc import algorithms
from fedilc.algorithms.loss_registry import LOSSES
from fedilc.algorithms.metric_registry import METRICS
from fedilc.algorithms.parts import REGISTRIES
from fedilc.config import shipped_experiments
from fedilc.config.experiment import SOURCES
from fedilc.models import NETWORKS


def test_every_algorithm_part_experiment_and_model_has_a_line_with_its_summary() -> None:
    lines = [line.split(maxsplit=1) for line in fedilc("list").splitlines()]
    described = {line[0] for line in lines if len(line) == 2}
    parts = {name for registry in (*REGISTRIES, LOSSES, METRICS, SOURCES) for name in registry.names()}
    known = {*algorithms.names(), *parts, *shipped_experiments(), *NETWORKS.names()}
    assert described - {OWN_PENALTY} == known - {OWN_ALGORITHM, OWN_PENALTY}


def test_every_group_has_a_title() -> None:
    parts = ["aggregations", "penalties", "optimizers", "losses", "metrics", "sources", "models"]
    titles = ["algorithms", *parts, "experiments"]
    lines = [line.strip() for line in fedilc("list").splitlines()]
    assert [line for line in lines if line in titles] == titles


def test_a_part_is_listed_with_its_options_and_their_defaults(refusal: Refusal) -> None:
    assert fedilc("list", "geometric") == (
        "aggregation geometric: weighted geometric mean: one per sign, weighted by the share of the sign\n"
        "  zeros = ignore\n  agreement = 0.0\n  min_side = 1\n"
    )
    assert fedilc("list", "vrex") == "penalty vrex: match mean losses\n  reduction = mean\n"
    assert fedilc("list", "huber").startswith("loss huber: half the squared error up to an error of 1")
    assert "source images: The user's own pictures" in fedilc("list", "images")
    assert "  image_size = None\n  backbone = None\n  test = None" in fedilc("list", "images")
    assert refusal("list", "geometrc") == "there is no part 'geometrc'; did you mean 'geometric'?"
