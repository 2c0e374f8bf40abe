"""Environments and chunks: every example votes once, whatever the sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedilc.gradients.environments import lay_out, lay_out_mean


@given(st.integers(1, 60), st.one_of(st.none(), st.integers(1, 70)), st.integers(1, 80))
def test_chunks_tile_the_examples_and_hold_whole_environments_where_they_fit(
    examples: int, size: int | None, most: int
) -> None:
    layout = lay_out(examples, size, most, seed=0, round_=1, silo="a")
    covered = [row for chunk in layout.chunks for row in range(chunk.start, chunk.stop)]
    assert covered == list(range(examples))
    closed = 0
    for chunk in layout.chunks:
        length = chunk.stop - chunk.start
        assert length <= max(most, 1)
        if chunk.size <= most:
            assert length % chunk.size == 0
            closed += length // chunk.size
        else:
            closed += chunk.closes
    assert closed == layout.environments


def test_environments_are_shuffled_anew_every_round_and_differ_between_silos() -> None:
    orders = {
        (round_, silo): tuple(lay_out(50, 5, 100, 0, round_, silo).order.tolist())
        for round_ in (1, 2)
        for silo in ("a", "b")
    }
    assert len(set(orders.values())) == 4
    again = lay_out(50, 5, 100, 0, 1, "a").order
    assert tuple(again.tolist()) == orders[1, "a"]
    assert sorted(orders[1, "a"]) == list(range(50))


def test_the_whole_silo_is_one_environment_in_its_own_order() -> None:
    layout = lay_out(50, None, 1000, 0, 1, "a")
    assert layout.order is None
    assert layout.environments == 1
    assert lay_out(50, 50, 1000, 0, 1, "a").environments == 1


@given(st.integers(1, 60), st.one_of(st.none(), st.integers(1, 70)), st.integers(1, 80))
def test_a_mean_over_environments_weighs_each_example_by_its_environments_size(
    examples: int, size: int | None, most: int
) -> None:
    votes = lay_out(examples, size, most, seed=0, round_=1, silo="a")
    mean = lay_out_mean(votes, most)
    order = list(range(examples)) if votes.order is None else votes.order.tolist()
    expected = [0.0] * examples
    for chunk in votes.chunks:
        for place in range(chunk.start, chunk.stop):
            expected[order[place]] = 1 / (votes.environments * chunk.size)
    weights = [1 / examples] * examples if mean.weights is None else mean.weights.tolist()
    assert weights == pytest.approx(expected)
