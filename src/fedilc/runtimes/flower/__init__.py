"""Train on Flower: a ServerApp, a ClientApp, and a strategy for your own ServerApp."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedilc.errors import ConfigError

if TYPE_CHECKING:
    from fedilc.runtimes.flower.client_app import make_client_app, silo_of
    from fedilc.runtimes.flower.server_app import FedILC, make_server_app

__all__ = ["FedILC", "make_client_app", "make_server_app", "silo_of"]

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

logger = logging.getLogger("flwr")

_MODULES = {
    "FedILC": "server_app",
    "make_client_app": "client_app",
    "make_server_app": "server_app",
    "silo_of": "client_app",
}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use: importing this package needs no Flower."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def require_flower() -> None:
    """Raise if Flower is not installed; call this before anything of Flower is imported.

    Flower and Ray read the environment when they are imported: this switches off telemetry, update checks and
    the installation of packages, unless the user has set these variables.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import flwr.app
    except ImportError as error:
        raise ConfigError(f"Flower cannot be used ({error}); run pip install 'fedilc[flower]'") from error
    if not hasattr(flwr.app, "Message"):
        raise ConfigError("this Flower is too old or too new; run pip install 'fedilc[flower]'")
