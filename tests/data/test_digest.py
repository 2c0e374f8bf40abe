"""Digests differ if and only if shapes, types or bits do."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedilc import Silo
from fedilc.data.digests import digest, silo_digest, weights_digest

ONE = torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    "other",
    [
        ONE.reshape(2, 2),
        ONE.double(),
        ONE.flip(0),
        ONE.nextafter(torch.tensor(9.0)),
        ONE.view(torch.int32),
        ONE[:3],
    ],
    ids=["shape", "type", "order", "last bit", "same bytes", "length"],
)
def test_another_shape_type_or_bit_is_another_digest(other: Tensor) -> None:
    assert digest(other) != digest(ONE)


def test_memory_layout_gradients_and_nothing_at_all_do_not_count() -> None:
    square = ONE.reshape(2, 2)
    assert digest(square.t().contiguous().t()) == digest(square)
    assert digest(ONE.clone().requires_grad_()) == digest(ONE)
    assert digest(ONE, None) == digest(ONE)
    assert digest(ONE.bfloat16()) == digest(ONE.bfloat16().clone())


def test_a_silo_is_known_by_its_examples_and_not_by_its_name() -> None:
    one, named = Silo("a", [[1.0]], [0], [[2.0]], [1]), Silo("b", [[1.0]], [0], [[2.0]], [1])
    assert silo_digest(one) == silo_digest(named)
    assert silo_digest(one) != silo_digest(Silo("a", [[1.0]], [0], [[2.0]], [0]))
    assert silo_digest(one) != silo_digest(Silo("a", [[1.0]], [0]))


def test_a_model_is_known_by_all_its_weights() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    other = copy.deepcopy(model)
    assert weights_digest(model) == weights_digest(other)
    other[1].running_mean += 1
    assert weights_digest(model) != weights_digest(other)
