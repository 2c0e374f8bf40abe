"""Train as an NVIDIA FLARE job: provisioned sites, mutual TLS, an admin console.

    from fedilc.runtimes.nvflare import FedILCRecipe

Importing this package needs no nvflare; the recipe does.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedilc.errors import ConfigError

if TYPE_CHECKING:
    from fedilc.runtimes.nvflare.recipe import FedILCRecipe as FedILCRecipe


def require_nvflare() -> None:
    """Raise if NVIDIA FLARE is not installed."""
    if find_spec("nvflare") is None:
        raise ConfigError("NVIDIA FLARE is not installed; install it with: pip install 'fedilc[nvflare]'")


def __getattr__(name: str) -> Any:
    """Import the recipe on its first use."""
    if name != "FedILCRecipe":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_nvflare()
    from fedilc.runtimes.nvflare.recipe import FedILCRecipe

    return FedILCRecipe
