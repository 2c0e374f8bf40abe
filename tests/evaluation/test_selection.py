"""Which round is reported: the earliest of the best, after the warm-up if there is one."""

from __future__ import annotations

import pytest
from histories import FULL, NO_TEST, TRAIN_ONLY, History

from fedilc.errors import ConfigError
from fedilc.evaluation import select
from fedilc.evaluation.selection import PAPER_WARM_UP, selections


def history(*losses: float | None, key: str = "validation_loss") -> History:
    return [{"round": number, key: loss} for number, loss in enumerate(losses, 1)]


@pytest.mark.parametrize(
    ("losses", "oracle", "validation"),
    [
        ((0.1, 0.1, 0.1, 0.1, 0.1, 0.9, 0.8), 7, 1),
        ((0.1, 0.1, 0.1, 0.1, 0.0, 0.9), 6, 5),
        ((9, 9, 9, 9, 9, 0.5, 0.3, 0.4, 0.3, 0.3), 7, 7),
        ((9, 9, 9, 9, 9, None, 0.3, None), 7, 7),
        ((0.3, 0.1, 0.1, 0.2), 2, 2),
        ((0.3, 0.2, 0.2, None, None, None, None), 2, 2),
    ],
    ids=[
        "the paper's oracle skips the first five rounds",
        "the sixth round counts",
        "a tie goes to the earliest",
        "rounds that were not measured do not count",
        "without a later round the first five count",
        "without a later measurement the first five count",
    ],
)
def test_the_lowest_loss_is_chosen_and_the_papers_oracle_begins_after_round_five(
    losses: tuple[float | None, ...], oracle: int, validation: int
) -> None:
    paper = select(history(*losses, key="test_loss"), "oracle", warm_up=PAPER_WARM_UP)
    assert paper["round"] == oracle
    assert select(history(*losses, key="test_loss"), "oracle")["round"] == validation
    assert select(history(*losses), "validation", warm_up=PAPER_WARM_UP)["round"] == validation


def test_the_warm_up_counts_rounds_not_records() -> None:
    sparse = [{"round": 1, "test_loss": 0.1}, {"round": 10, "test_loss": 0.9}]
    assert select(sparse, "oracle", warm_up=PAPER_WARM_UP)["round"] == 10


def test_last_is_the_last_round_whatever_its_losses() -> None:
    assert select(history(0.1, 0.2, None), "last")["round"] == 3


def test_each_criterion_looks_at_its_own_loss() -> None:
    rounds = [
        {"round": 6, "validation_loss": 0.1, "test_loss": 0.9},
        {"round": 7, "validation_loss": 0.2, "test_loss": 0.3},
        {"round": 8, "validation_loss": 0.4, "test_loss": 0.5},
    ]
    assert [select(rounds, name)["round"] for name in ("validation", "oracle", "last")] == [6, 7, 8]


@pytest.mark.parametrize(
    ("rounds", "criterion", "sentence"),
    [
        ([{"round": 1}], "oracle", "'oracle' cannot choose a round: it needs a test set"),
        (history(None, None), "validation", "'validation' cannot .* needs validation examples"),
        ([], "last", "'last' cannot choose a round"),
        ([], "validation", "'validation' cannot choose a round"),
        (history(1.0), "valdation", "'valdation' is unknown; did you mean 'validation'"),
    ],
    ids=["no test set", "nothing measured", "no round", "no round measured", "unknown"],
)
def test_a_criterion_that_cannot_choose_says_what_it_needs(
    rounds: History, criterion: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        select(rounds, criterion)


def test_each_criterion_that_can_choose_has_a_round() -> None:
    assert {name: found["round"] for name, found in selections(FULL).items()} == {
        "oracle": 8,
        "validation": 7,
        "last": 9,
    }
    assert list(selections(NO_TEST)) == ["validation", "last"]
    assert list(selections(TRAIN_ONLY)) == ["last"]
