"""Replies add up to the same sums one by one or through a sub-coordinator."""

from __future__ import annotations

import math

import pytest
import torch

from fedilc.aggregation import Mean, WeightedGeometricMean
from fedilc.errors import NonFiniteError
from fedilc.federation import Reply
from fedilc.federation.protocol import Answer, Range, Step
from fedilc.federation.step_sums import COSINE, NORMS, Examples, SiloWeights, StepSums

LIKE = {"w": torch.zeros(3)}
NUMBERS = {"loss": Range(0, 9), "examples": Range(1, 99)}


def step(aggregator: object = None, weighted: bool = False) -> Step:
    answer = Answer(LIKE, aggregator or Mean(), weighted=weighted)
    return Step("update", answers={"gradient": answer}, numbers=NUMBERS)


def reply(silo: str, *values: float) -> Reply:
    return Reply(
        silo, "update", 1, {"gradient": {"w": torch.tensor(values)}}, {"loss": 1.0, "examples": ord(silo)}
    )


REPLIES = [reply("a", 1.0, -2.0, 3.0), reply("b", 0.1, 5.0, -1e-9), reply("c", 7.0, -0.3, 2.0)]


def aggregate(sums: StepSums) -> list[float]:
    aggregator, state = sums.sums["gradient"]
    return aggregator.finalize(state).value["w"].tolist()


@pytest.mark.parametrize(
    ("aggregator", "weights"),
    [(Mean(), SiloWeights()), (Mean(), Examples()), (WeightedGeometricMean(), SiloWeights())],
)
def test_sums_of_a_sub_coordinator_are_the_same_bits(aggregator: object, weights: SiloWeights) -> None:
    made = step(aggregator, weighted=isinstance(weights, Examples))
    flat, below, root = (StepSums(made, {"gradient": LIKE}, weights) for _ in range(3))
    for one in REPLIES:
        flat.add(one)
    for one in REPLIES[:2]:
        below.add(one)
    root.add(REPLIES[2])
    root.add(below.aggregated_reply())
    assert aggregate(root) == aggregate(flat)
    assert root.silo_numbers() == {silo: flat.silo_numbers()[silo] for silo in "cab"}


def test_an_infinite_reply_is_left_out_of_the_sums_and_its_norm_is_infinite() -> None:
    sums = StepSums(step(), {"gradient": LIKE}, SiloWeights())
    sums.add(REPLIES[0])
    sums.add(reply("d", math.nan, 0.0, 0.0))
    assert aggregate(sums) == [1.0, -2.0, 3.0]
    assert sums.silo_numbers()["d"][NORMS] == {"gradient": math.inf}


def test_an_infinite_reply_is_an_error_if_strict() -> None:
    sums = StepSums(step(), {"gradient": LIKE}, SiloWeights(), strict=True)
    with pytest.raises(NonFiniteError, match="silo 'd'"):
        sums.add(reply("d", math.inf, 0.0, 0.0))


@pytest.mark.parametrize("aggregator", [Mean(), WeightedGeometricMean()])
def test_silos_have_the_cosine_of_their_gradient_and_those_of_a_sub_coordinator_that_of_their_aggregate(
    aggregator: object,
) -> None:
    towards = torch.tensor([0.6, -0.8, 0.0])
    directions = {"gradient": {"w": towards}}
    root = StepSums(step(aggregator), {"gradient": LIKE}, SiloWeights(), directions=directions)
    below = StepSums(step(aggregator), {"gradient": LIKE}, SiloWeights())
    for one in REPLIES[:2]:
        below.add(one)
    together = torch.tensor(aggregate(below))
    root.add(REPLIES[2])
    root.add(below.aggregated_reply())
    found = {silo: numbers[COSINE] for silo, numbers in root.silo_numbers().items()}
    alone = REPLIES[2].tensors["gradient"]["w"]
    own, shared = (float(torch.dot(g, towards) / g.norm()) for g in (alone, together))
    assert found == {silo: pytest.approx(own if silo == "c" else shared, rel=1e-5) for silo in "abc"}
    assert all(COSINE not in numbers for numbers in below.silo_numbers().values())
