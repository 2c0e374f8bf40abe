"""Train as an NVIDIA FLARE job: provisioned sites, mutual TLS, an admin console. See docs/nvflare.md.

    from fedilc.runtimes.nvflare import FedILCRecipe

Importing this package needs no nvflare; the recipe does.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from fedilc.errors import ConfigError
from fedilc.lazy import lazily

if TYPE_CHECKING:
    from fedilc.runtimes.nvflare.recipe import FedILCRecipe as FedILCRecipe


def require_nvflare() -> None:
    """Raise if NVIDIA FLARE is not installed."""
    if find_spec("nvflare") is None:
        raise ConfigError("NVIDIA FLARE is not installed; install it with: pip install 'fedilc[nvflare]'")


__getattr__ = lazily(__name__, {"FedILCRecipe": "fedilc.runtimes.nvflare.recipe"}, require_nvflare)
