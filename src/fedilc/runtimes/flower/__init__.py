"""FedILC on Flower: a ServerApp, a ClientApp, and a strategy for a ServerApp of one's own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedilc.runtimes.flower.client import make_client_app
    from fedilc.runtimes.flower.example import silo_of
    from fedilc.runtimes.flower.server import make_server_app
    from fedilc.runtimes.flower.strategy import FedILC

__all__ = ["FedILC", "make_client_app", "make_server_app", "silo_of"]

_HOMES = {
    "FedILC": "strategy",
    "make_client_app": "client",
    "make_server_app": "server",
    "silo_of": "example",
}


def __getattr__(name: str) -> Any:
    """Load what needs torch only when it is asked for, so that the command starts at once."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
