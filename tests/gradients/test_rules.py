"""The rule for convolutions, against one backward pass of torch per environment."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedilc.gradients.per_example import LEAST_EXAMPLES, convolution

LAYERS = {
    "padded": lambda: nn.Conv2d(4, 6, 3, padding=1),
    "strided": lambda: nn.Conv2d(4, 6, 3, stride=2, padding=(1, 0)),
    "dilated, in groups, without bias": lambda: nn.Conv2d(4, 6, 3, dilation=2, groups=2, bias=False),
    "same size": lambda: nn.Conv2d(4, 6, (3, 2), padding="same"),
    "same size, dilated": lambda: nn.Conv2d(4, 6, (2, 4), padding="same", dilation=(3, 1)),
    "circular, same size": lambda: nn.Conv2d(4, 6, (3, 2), padding="same", padding_mode="circular"),
    "valid": lambda: nn.Conv2d(4, 6, 3, padding="valid"),
    "two paddings": lambda: nn.Conv2d(4, 6, 3, padding=(2, 1), padding_mode="circular"),
    "reflected": lambda: nn.Conv2d(4, 6, 3, padding=2, padding_mode="reflect"),
    "one axis": lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1),
    "one axis, circular": lambda: nn.Conv1d(4, 6, 5, padding=2, padding_mode="circular"),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("examples", [1, LEAST_EXAMPLES - 1, LEAST_EXAMPLES])
@pytest.mark.parametrize("channels_last", [False, True])
def test_each_environment_has_the_gradient_that_autograd_gives(
    layer: str, examples: int, channels_last: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    module = LAYERS[layer]().double()
    shape = (4, 8, 7) if isinstance(module, nn.Conv2d) else (4, 9)
    x = torch.randn(3 * examples, *shape, generator=generator, dtype=torch.float64)
    if channels_last and x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
        module = module.to(memory_format=torch.channels_last)
    out = module(x)
    d = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    found = convolution(module, x.unflatten(0, (3, -1)), d.unflatten(0, (3, -1)))
    for number in range(3):
        rows = slice(number * examples, (number + 1) * examples)
        expected = _gradients(module, x[rows], d[rows])
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name][number], value, rtol=1e-12, atol=1e-12)


def _gradients(module: nn.Module, x: Tensor, d: Tensor) -> dict[str, Tensor]:
    parameters = dict(module.named_parameters())
    found = torch.autograd.grad(module(x), list(parameters.values()), d)
    return dict(zip(parameters, found, strict=True))
