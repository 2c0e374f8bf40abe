"""Linear layers of odd widths: the fast way gives what the plain way gives."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedilc.gradients.fast_linear import FastLinear, has_product, suits

SHAPES = [(300, 390, 390), (300, 392, 390), (300, 390, 392), (256, 1399, 65), (300, 64, 71)]


def case(rows: int, narrow: int, wide: int, bias: bool, generator: torch.Generator) -> list[Tensor]:
    shapes = [(rows, narrow), (wide, narrow), *([(wide,)] if bias else [])]
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_equal_float64(
    shape: tuple[int, int, int], bias: bool, generator: torch.Generator
) -> None:
    tensors = case(*shape, bias, generator)
    assert suits(*tensors)
    seed = torch.randn(shape[0], shape[2], generator=generator)
    with FastLinear():
        found = functional.linear(*tensors)
    gradients = torch.autograd.grad(found, tensors, seed)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = functional.linear(*exact)
    assert found.is_contiguous()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, exact, seed.double()), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=2e-4)


def test_a_second_derivative_can_be_taken(generator: torch.Generator) -> None:
    tensors = case(256, 70, 66, True, generator)

    def slope_of_slope(ways: list[Tensor]) -> Tensor:
        out = functional.linear(*ways).square().sum()
        (first,) = torch.autograd.grad(out, ways[0], create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), ways[1])
        return second

    with FastLinear():
        found = slope_of_slope(tensors)
    expected = slope_of_slope([tensor.detach().double().requires_grad_() for tensor in tensors])
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1.0)


@pytest.mark.parametrize(
    "shape", [(8, 390, 390), (300, 392, 64), (300, 30, 31)], ids=["few rows", "even widths", "narrow"]
)
def test_what_would_gain_nothing_goes_the_plain_way(
    shape: tuple[int, int, int], generator: torch.Generator
) -> None:
    assert not suits(*case(*shape, True, generator))


def test_other_dtypes_and_shapes_go_the_plain_way(generator: torch.Generator) -> None:
    x, weight, bias = case(300, 390, 390, True, generator)
    assert not suits(x.double(), weight.double(), bias.double())
    assert not suits(x.reshape(3, 100, 390), weight, bias)
    sequence = nn.Linear(390, 390)
    with FastLinear():
        assert sequence(x.reshape(3, 100, 390)).shape == (3, 100, 390)


def test_only_the_gradients_asked_for_are_computed(generator: torch.Generator) -> None:
    x, weight, bias = case(300, 390, 390, True, generator)
    with FastLinear():
        out = functional.linear(x.detach(), weight, bias.detach())
    out.sum().backward()
    assert weight.grad is not None
    assert x.grad is None
    assert bias.grad is None


def _of_another_signature(*tensors: Tensor) -> Tensor:
    raise RuntimeError("mkldnn::_linear_pointwise() expected at most 3 arguments but received 6")


@pytest.fixture(
    params=[
        {},
        {"_linear_pointwise": _of_another_signature},
        {"_linear_pointwise": lambda x, weight, *_: x @ weight.t()},
    ],
    ids=["lacks it", "takes other arguments", "computes something else"],
)
def other_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A torch whose private product is not the one that was written for."""
    operations: dict[str, Any] = request.param
    has_product.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch.ops, "mkldnn", SimpleNamespace(**operations))
        yield
    has_product.cache_clear()


@pytest.mark.usefixtures("other_torch")
def test_without_the_private_product_of_torch_layers_go_the_plain_way(generator: torch.Generator) -> None:
    tensors = case(300, 390, 390, True, generator)
    assert not suits(*tensors)
    with FastLinear():
        found = functional.linear(*tensors)
    assert torch.equal(found, functional.linear(*tensors))
    assert all(gradient is not None for gradient in torch.autograd.grad(found.sum(), tensors))


def test_this_torch_has_the_product() -> None:
    assert has_product() == torch.backends.mkldnn.is_available()
