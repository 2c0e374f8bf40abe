"""Train over HTTP: a coordinator, and silos that connect to it; silos open no port."""

from __future__ import annotations

from importlib.util import find_spec

from fedilc.errors import ConfigError


def require_server() -> None:
    """Raise if the packages that a coordinator needs are not installed; a silo needs none of them."""
    missing = [name for name in ("fastapi", "uvicorn", "httptools") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"a coordinator needs {', '.join(missing)}, which the plain package leaves out; install them "
            "with pip install 'fedilc[serve]'"
        )
