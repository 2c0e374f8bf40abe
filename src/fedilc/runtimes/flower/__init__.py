"""FedILC on Flower: a ServerApp, a ClientApp, and a strategy for a ServerApp of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedilc.lazy import lazily

if TYPE_CHECKING:
    from fedilc.runtimes.flower.client import make_client_app
    from fedilc.runtimes.flower.example import silo_of
    from fedilc.runtimes.flower.server import make_server_app
    from fedilc.runtimes.flower.strategy import FedILC

__all__ = ["FedILC", "make_client_app", "make_server_app", "silo_of"]

__getattr__ = lazily(
    __name__,
    {
        "FedILC": "fedilc.runtimes.flower.strategy",
        "make_client_app": "fedilc.runtimes.flower.client",
        "make_server_app": "fedilc.runtimes.flower.server",
        "silo_of": "fedilc.runtimes.flower.example",
    },
)
