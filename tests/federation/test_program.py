"""Parts take the options that are theirs, others are noted; the steps of a round follow from the parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command import fedilc
from networks import mlp
from torch import nn

from fedilc import Algorithm, Federation, Silo, train
from fedilc.aggregation import AndMask, WeightedGeometricMean
from fedilc.algorithms import find_algorithm
from fedilc.config import Options
from fedilc.errors import ConfigError, FedILCWarning
from fedilc.federation import Program


def program(algorithm: str) -> Program:
    return Program.of(find_algorithm(algorithm)[1], "binary", Options(rounds=1, learning_rate=0.1), mlp())


@pytest.mark.parametrize(
    ("algorithm", "penalty_weight", "steps"),
    [
        ("fedsgd", 0.0, ["update"]),
        ("fishr-inter-geo", 1.0, ["statistics", "matched-update"]),
        ("fishr-inter-geo", 0.0, ["update"]),
        ("irm", 1.0, ["matched-update"]),
    ],
)
def test_a_round_matches_statistics_only_with_a_penalty(
    algorithm: str, penalty_weight: float, steps: list[str]
) -> None:
    assert [step.name for step in program(algorithm).round(penalty_weight)] == steps


def test_the_penalty_gradient_is_an_answer_of_its_own_unless_inter_is_a_mean() -> None:
    assert set(program("fishr-inter-geo").steps["matched-update"].answers) == {"gradient", "penalty"}
    assert set(program("fedcurv").steps["matched-update"].answers) == {"gradient"}


def test_control_variates_make_silos_keep_state_and_send_its_change() -> None:
    step = program("scaffold").steps["update"]
    assert program("scaffold").keeps_state
    assert set(step.sends) == {"control"}
    assert set(step.answers) == {"update", "control"}
    assert not program("fedavg").keeps_state


def test_the_largest_reply_is_gradient_and_penalty_gradient() -> None:
    parameters = sum(p.numel() for p in mlp().parameters())
    assert program("fishr-inter-geo").answer_bytes == 2 * 4 * parameters
    assert program("fedsgd").answer_bytes == 4 * parameters


SMALL = ("--rounds", 1, "--set", "model.hidden=[4]")


@pytest.fixture
def federation(generator: torch.Generator) -> Federation:
    silos = []
    for name in ("a", "b", "c"):
        x = torch.randn(12, 3, generator=generator)
        silos.append(Silo(name, x, (x[:, 0] > 0).float()))
    return Federation("f", silos)


def test_an_option_that_no_part_of_the_algorithm_takes_is_said_to_change_nothing(tmp_path: Path) -> None:
    said = r"agreement=0.5 has no effect in fedsgd: none of its parts has this option"
    with pytest.warns(FedILCWarning, match=said):
        fedilc(
            "run", "color-digits", "-a", "fedsgd", "--set", "agreement=0.5", "--out", tmp_path / "run", *SMALL
        )


@pytest.mark.parametrize(
    ("algorithm", "option"),
    [
        (Algorithm(inter="and-mask"), {"zeros": "strict"}),
        (Algorithm(inter=AndMask(0.4)), {"agreement": 0.2}),
        ("fishr-intra-arith", {"zeros": "authors"}),
        ("and-mask", {"min_side": 2}),
    ],
)
def test_the_note_names_the_option_whatever_the_algorithm(
    algorithm: str | Algorithm, option: dict[str, object], federation: Federation
) -> None:
    with pytest.warns(FedILCWarning, match=f"{next(iter(option))}=.* has no effect"):
        train(
            federation, nn.Linear(3, 1), algorithm, rounds=1, learning_rate=0.1, environment_size=4, **option
        )


@pytest.mark.parametrize("given", [{"agreement": 1.0}, {"min_side": 3}], ids=str)
@pytest.mark.parametrize(
    "algorithm",
    ["geometric", "fishr-inter-geo", "fishr-intra-geo", Algorithm(intra="geometric", inter=AndMask(0.4))],
)
def test_an_option_that_one_part_takes_reaches_it_without_a_note(
    algorithm: str | Algorithm, given: dict[str, object], federation: Federation
) -> None:
    runs = [
        train(
            federation, nn.Linear(3, 1), algorithm, rounds=1, learning_rate=0.1, environment_size=4, **option
        )
        for option in ({}, given)
    ]
    weights = [torch.cat([p.flatten() for p in run.model.parameters()]) for run in runs]
    assert not torch.equal(*weights)


def test_a_min_side_that_no_side_can_reach_is_refused(federation: Federation) -> None:
    for more, asked in (({"min_side": 4}, 3), ({"min_side": 3, "silos_per_round": 2}, 2)):
        sentence = f"drops every value, because a round asks only {asked} silos; lower min_side"
        with pytest.raises(ConfigError, match=sentence):
            train(federation, nn.Linear(3, 1), "geometric", rounds=1, learning_rate=0.1, **more)


def test_an_object_keeps_the_options_it_was_made_with(federation: Federation) -> None:
    model = nn.Linear(3, 1)
    found = [
        train(federation, model, Algorithm(inter=inter), rounds=2, learning_rate=0.1, **option)
        for inter, option in ((WeightedGeometricMean(agreement=0.9), {}), ("geometric", {"agreement": 0.9}))
    ]
    assert found[0].history == found[1].history
