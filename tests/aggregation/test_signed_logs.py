"""Counts and sums of logarithms by sign: the same words from every way to add values."""

from __future__ import annotations

import pytest
import torch
from stacks import both_ways, every_exponent
from torch import Tensor

from fedilc.aggregation.signed_logs import ROOM, SignedLogs

CPU = torch.device("cpu")


def test_compiled_loops_and_torch_add_the_same_logarithms(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    values = every_exponent(generator)

    def words() -> Tensor:
        logs = SignedLogs(values.shape, torch.float32, CPU)
        assert logs.add(torch.stack([values, values.roll(1), -values]))
        return logs.wide_words()

    assert torch.equal(*both_ways(monkeypatch, words))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("replies", [1, ROOM + 1])
def test_words_that_were_sent_are_those_of_the_values(
    dtype: torch.dtype, replies: int, generator: torch.Generator
) -> None:
    values = torch.randn(2 * replies, 3, generator=generator).to(dtype)
    values[0, 0] = 0.0
    whole, half, both = (SignedLogs(values.shape[1:], dtype, CPU) for _ in range(3))
    assert whole.add(values)
    assert half.add(values[:replies])
    assert both.add(values[replies:])
    counts, low, high = half.wide_words()
    both.add_words(counts, low, high, replies)
    assert torch.equal(both.wide_words(), whole.wide_words())


def test_counts_and_logarithms_are_those_of_each_side() -> None:
    logs = SignedLogs(torch.Size([2]), torch.float32, CPU)
    assert logs.add(torch.tensor([[2.0, 0.0], [8.0, -0.5], [-4.0, -0.25]]))
    (positives, negatives), (log_positive, log_negative) = logs.counts_and_logs()
    assert (positives.tolist(), negatives.tolist()) == ([2, 0], [1, 2])
    assert (log_positive.tolist(), log_negative.tolist()) == ([4.0, 0.0], [2.0, -3.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_added(dtype: torch.dtype, bad: float) -> None:
    logs = SignedLogs(torch.Size([2]), dtype, CPU)
    assert not logs.add(torch.tensor([[1.0, bad]], dtype=dtype))
