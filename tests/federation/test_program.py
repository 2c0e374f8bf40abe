"""The steps of a round follow from the algorithm's parts."""

from __future__ import annotations

import pytest
from networks import mlp

from fedilc.algorithms import find_algorithm
from fedilc.config import Options
from fedilc.federation import Program
from fedilc.federation.run_parts import make_parts


def program(algorithm: str) -> Program:
    return Program.of(
        make_parts(find_algorithm(algorithm)[1], "binary", Options(rounds=1, learning_rate=0.1)), mlp()
    )


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
