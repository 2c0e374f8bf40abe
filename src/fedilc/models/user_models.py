"""Build the network of the user's own `module:function` (`--model`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedilc.algorithms.user_code import call_user_code, find_function
from fedilc.errors import ConfigError
from fedilc.seeds import seed_for

if TYPE_CHECKING:
    from fedilc.runtimes.remote.manifest import Manifest


def user_network(builder: str, seed: int, *given: Any) -> nn.Module:
    """Return the network of the user's own `module:function`; its random choices depend only on `seed`.

    What is given, such as the shape of an input, reaches a function that takes arguments, and no other.
    """
    function = find_function(builder, "model")
    arguments = given[: len(inspect.signature(function).parameters)]
    with torch.random.fork_rng():
        torch.manual_seed(seed_for(seed, "model"))
        model = call_user_code(function, builder, *arguments)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{builder} returned {type(model).__name__}, not a torch.nn.Module")
    return model


def network_from(builder: str) -> Callable[[Manifest], nn.Module]:
    """Return a function that builds the network of the user's own `module:function`."""
    find_function(builder, "model")
    return lambda manifest: user_network(builder, manifest.seed)
