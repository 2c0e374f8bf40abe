"""The built-in networks, and the search for the classifier of any torch module."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedilc.models.registry import NETWORKS, register

if TYPE_CHECKING:
    from fedilc.models.networks import build_model, cnn, find_classifier, input_hint, linear, mlp

__all__ = ["NETWORKS", "build_model", "cnn", "find_classifier", "input_hint", "linear", "mlp", "register"]


def __getattr__(name: str) -> Any:
    """Return a public name, and load torch only then: settings are read without it."""
    if name in __all__:
        return getattr(import_module("fedilc.models.networks"), name)
    raise AttributeError(f"module 'fedilc.models' has no attribute {name!r}")
