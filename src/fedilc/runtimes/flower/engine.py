"""Flower itself: whether it is installed, and that it stays quiet and installs nothing."""

from __future__ import annotations

import logging
import os

from fedilc.errors import ConfigError

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

logger = logging.getLogger("flwr")


def require_flower() -> None:
    """Raise where Flower is not installed; to be called before anything of it is imported.

    Flower and Ray read the environment when they are imported. What the user has set stays.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import flwr.app
    except ImportError as error:
        raise ConfigError(f"Flower cannot be used ({error}); run pip install 'fedilc[flower]'") from error
    if not hasattr(flwr.app, "Message"):
        raise ConfigError("this Flower is too old or too new; run pip install 'fedilc[flower]'")
