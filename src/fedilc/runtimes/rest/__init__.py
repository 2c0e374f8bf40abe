"""Train over HTTP: a coordinator, and silos that connect to it; silos open no port."""

from __future__ import annotations

from fedilc.errors import require_extra


def require_server() -> None:
    """Raise if the packages that a coordinator needs are not installed; a silo needs none of them."""
    require_extra("serve", "a coordinator", "fastapi", "uvicorn", "httptools", "prometheus_client")
