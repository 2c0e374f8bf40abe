"""Silos, and the sources that they come from."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedilc.algorithms.loss_registry import LossName
    from fedilc.data.silo import Federation, Silo

__all__ = ["Federation", "LossName", "Silo"]


def __getattr__(name: str) -> Any:
    """Return a public name, and load torch only then: listing or fetching data does not need it."""
    if name in __all__:
        return getattr(import_module("fedilc.data.silo"), name)
    raise AttributeError(f"module 'fedilc.data' has no attribute {name!r}")
