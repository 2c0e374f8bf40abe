"""Networks by name, and the function that builds each. This file needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedilc.algorithms.registry import Registry, first_line, imported
from fedilc.errors import WrongTypeError


@dataclass(frozen=True)
class NetworkEntry:
    """An entry of the registry: a line for `fedilc list`, and the function that builds the network.

    `builder` is the function, or "module:function", which is imported when the network is first built.
    """

    summary: str
    builder: str | Callable[..., Any]

    def function(self) -> Callable[..., Any]:
        """Return the function that builds the network."""
        found: Callable[..., Any] = imported(self.builder) if isinstance(self.builder, str) else self.builder
        return found


NETWORKS: Registry[NetworkEntry] = Registry(
    "model",
    {
        "mlp": NetworkEntry(
            "linear layers with ReLU, 390 and 390 wide; set hidden = [..] for other widths",
            "fedilc.models.networks:mlp",
        ),
        "cnn": NetworkEntry(
            "three 3x3 convolutions with GroupNorm, for small images", "fedilc.models.networks:cnn"
        ),
        "linear": NetworkEntry(
            "one linear layer whose weights start at 0, as in logistic regression",
            "fedilc.models.networks:linear",
        ),
    },
)


def register(name: str, builder: Callable[..., Any] | str, summary: str = "") -> None:
    """Add a network under a new name, which `[model] name = ...` and manifests can then use.

    Args:
        name: its name in experiments.
        builder: takes the shape of an input, the number of outputs, a `torch.Generator` and sizes by name,
            and returns the network; or "module:function", which is imported when it is first used.
        summary: a line for `fedilc list`; the first line of the builder's docstring if it is empty.

    Raises:
        ConfigError: if the name is taken.
        WrongTypeError: if the builder cannot be called.

    >>> register("constant", lambda inputs, outputs, generator: None, "nothing")
    >>> NETWORKS.summary("constant")
    'nothing'
    >>> NETWORKS.unregister("constant")
    """
    if not (isinstance(builder, str) or callable(builder)):
        raise WrongTypeError(
            f"register() was given {type(builder).__name__} as the network {name!r}; give a function that "
            "builds it"
        )
    NETWORKS.register(name, NetworkEntry(summary or first_line(builder), builder))
