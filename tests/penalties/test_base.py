"""What penalties share: totals over chunks, and means over examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedilc.gradients import Loss
from fedilc.gradients.forward import Pass
from fedilc.penalties import ExampleMean, Total


class SquaredLogit(ExampleMean):
    statistic = "squared logit"

    def numbers(self, chunk: Pass) -> Tensor:
        return chunk.logits[:, 0].square()


def chunk_of(model: nn.Module, x: Tensor) -> Pass:
    return Pass(x, torch.zeros(len(x)), model(x), [], [], Loss("binary"), list(model.parameters()))


def test_totals_of_chunks_add_up_to_the_total_of_all() -> None:
    values = torch.tensor([0.1, 0.7, -0.3, 2.0])
    both = Total.of(values[:1]) + Total.of(values[1:])
    assert (both.count, both.dtype) == (4, torch.float32)
    assert torch.equal(both.mean(), values.double().mean().float().reshape(1))


def test_a_mean_over_examples_and_its_product_with_a_vector_equal_autograd(
    generator: torch.Generator,
) -> None:
    model, penalty = nn.Linear(3, 1).double(), SquaredLogit()
    x = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    chunks = [chunk_of(model, part) for part in x.split(3)]
    total = penalty.sums(chunks[0]) + penalty.sums(chunks[1]) + penalty.sums(chunks[2])
    expected = model(x).square().mean()
    vector = torch.tensor([0.7], dtype=torch.float64)
    assert penalty.like(model, None).shape == penalty.value(total).shape == (1,)
    torch.testing.assert_close(penalty.value(total), expected.detach().reshape(1))
    right = torch.autograd.grad(vector * expected, list(model.parameters()))
    found = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for chunk in chunks:
        places, gradients = zip(*penalty.carry_back(chunk, total, vector), strict=True)
        for sum_, part in zip(found, torch.autograd.grad(places, chunk.parameters, gradients), strict=True):
            sum_ += part
    torch.testing.assert_close(found, list(right))
