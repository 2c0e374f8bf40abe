"""The paper's protocol over HTTP: a coordinator, and silos that join from behind their firewalls."""

from __future__ import annotations

from importlib.util import find_spec

from fedilc.errors import ConfigError


def require_server() -> None:
    """Raise one sentence if the packages that a coordinator needs are not installed; a silo needs none."""
    missing = [name for name in ("fastapi", "uvicorn", "httptools") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"a coordinator needs {', '.join(missing)}, which the plain package leaves out; install it with: "
            "pip install 'fedilc[serve]'"
        )
