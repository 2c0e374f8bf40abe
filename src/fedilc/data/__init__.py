"""Where silos come from."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedilc.algorithms.loss_name import LossName
    from fedilc.data.silo import Federation, Silo

__all__ = ["Federation", "LossName", "Silo"]


def __getattr__(name: str) -> Any:
    """Load torch only for what needs it: to list or fetch data does not."""
    if name in __all__:
        return getattr(import_module("fedilc.data.silo"), name)
    raise AttributeError(f"module 'fedilc.data' has no attribute {name!r}")
