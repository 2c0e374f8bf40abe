"""Two of the paper's networks, a linear one, and the search for the classifier of any network."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedilc.data.inputs import Inputs, Shape, is_several, shape_text
from fedilc.errors import ConfigError, ModelError, nearest
from fedilc.models.registry import NETWORKS
from fedilc.seeds import torch_generator


def mlp(
    inputs: Sequence[int], outputs: int, generator: torch.Generator, hidden: Sequence[int] = (390, 390)
) -> nn.Sequential:
    """Return the paper's perceptron: linear layers with ReLU, Xavier-uniform weights, zero biases."""
    widths = [math.prod(inputs), *hidden]
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Flatten()]
        for narrow, wide in pairwise(widths):
            layers += [nn.Linear(narrow, wide), nn.ReLU()]
        network = nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
    return _initialise(network, generator, _xavier)


def cnn(inputs: Sequence[int], outputs: int, generator: torch.Generator) -> nn.Sequential:
    """Return the paper's network for images: three convolutions with GroupNorm, and two linear layers."""
    if len(inputs) != 3 or _channels_last(inputs):
        last = ": their channels come last, so give x.transpose(0, 3, 1, 2)" if len(inputs) == 3 else ""
        raise ConfigError(
            f"model 'cnn' needs images of shape (channels, height, width), not {tuple(inputs)}{last}"
        )
    channels = inputs[0]
    with torch.device("meta"):
        convolutions = nn.Sequential(
            *[nn.Conv2d(channels, 64, 3, padding=1), nn.ReLU(), nn.GroupNorm(8, 64)],
            nn.MaxPool2d(2),
            *[nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(), nn.GroupNorm(8, 128)],
            nn.MaxPool2d(2),
            *[nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.GroupNorm(8, 128)],
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        features = convolutions(torch.empty(1, *inputs)).shape[1]
        network = nn.Sequential(*convolutions, nn.Linear(features, 128), nn.Linear(128, outputs))
    return _initialise(network, generator, _uniform_fan_in)


def linear(inputs: Sequence[int], outputs: int, generator: torch.Generator) -> nn.Sequential:
    """Return one linear layer whose weights are 0.

    Its loss is convex, so that the initial weights do not decide which minimum is found, and a coordinate
    that no aggregation ever changes stays 0.
    """
    network = mlp(inputs, outputs, generator, ())
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    return network


def build_model(name: str, inputs: Shape, outputs: int, seed: int, **sizes: Any) -> nn.Module:
    """Return a network by name for inputs of this shape, its weights drawn from `seed` alone.

    >>> network = build_model("mlp", (2, 8, 8), 1, seed=0, hidden=[16])
    >>> sum(weights.numel() for weights in network.parameters())
    2081
    """
    builder = NETWORKS.get(name).function()
    for key in sizes:
        if key not in inspect.signature(builder).parameters:
            raise ConfigError(f"model {name!r} has no setting {key!r}; leave it out (`model.{key}=none`)")
    if is_several(inputs):
        raise ConfigError(
            f"model {name!r} takes one input, but the data have several ({shape_text(inputs)}); give a "
            "network of your own that takes them"
        )
    generator = torch_generator(seed, "model")
    try:
        network: nn.Module = builder(inputs, outputs, generator, **sizes)
        return network
    except (TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"model {name!r} cannot be built for inputs of shape {tuple(inputs)} with {sizes or 'no sizes'}: "
            f"{reason}"
        ) from error


def find_classifier(model: nn.Module, name: str | None = None) -> tuple[str, nn.Linear]:
    """Return the classifier, whose gradient variance Fishr matches: the last `nn.Linear` unless named.

    >>> find_classifier(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)))[0]
    '2'
    """
    linears = {key: module for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not linears:
        raise ModelError("the model has no nn.Linear to serve as its classifier; end it with one")
    if name is None:
        name = list(linears)[-1]
    if name not in linears:
        raise ModelError(f"the model has no linear layer {name!r}{nearest(name, linears)}")
    return name, linears[name]


def _channels_last(inputs: Sequence[int]) -> bool:
    """Return whether the shape is that of an image with channels after height and width."""
    return len(inputs) == 3 and inputs[2] <= 4 < min(inputs[:2])


def input_hint(sample: Inputs, error: Exception) -> str:
    """Return why a model did not take inputs, and what is probably wrong, as the end of a sentence."""
    said = (str(error).splitlines() or [""])[0]
    if not isinstance(error, RuntimeError | ValueError | TypeError | IndexError):
        said = f"it raised {type(error).__name__}" + (f" ({said})" if said else "")
    if "argument" in said and isinstance(error, TypeError):
        return f"{said}; give a dict with the names of forward()'s inputs, or a tuple in their order, as x"
    if not isinstance(sample, Tensor):
        return said
    if not sample.is_floating_point():
        return f"{said}; if they are numbers, give them as floats (x.float())"
    if _channels_last(sample.shape[1:]):
        return f"{said}; their channels seem to come last: give (channels, height, width)"
    return said


@torch.no_grad()
def _initialise(
    network: nn.Sequential, generator: torch.Generator, draw: Callable[[nn.Module, torch.Generator], None]
) -> nn.Sequential:
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            # Do what `Module.to_empty` does, without loading SymPy.
            setattr(module, name, nn.Parameter(torch.empty(parameter.shape)))
        if isinstance(module, nn.GroupNorm):
            module.reset_parameters()
        elif isinstance(module, nn.Linear | nn.Conv2d):
            draw(module, generator)
    return network


def _xavier(module: nn.Module, generator: torch.Generator) -> None:
    weight, bias = module.parameters()
    nn.init.xavier_uniform_(weight, generator=generator)
    bias.zero_()


def _uniform_fan_in(module: nn.Module, generator: torch.Generator) -> None:
    weight, bias = module.parameters()
    bound = 1 / math.sqrt(weight[0].numel())
    for parameter in (weight, bias):
        parameter.uniform_(-bound, bound, generator=generator)
