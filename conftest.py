"""Examples in docstrings are tested too, where the engine that their module needs is installed."""

from __future__ import annotations

from importlib.util import find_spec

ENGINES = {"nvflare": "nvflare", "flower": "flwr"}

collect_ignore_glob = [
    f"src/fedilc/runtimes/{folder}/*" for folder, package in ENGINES.items() if find_spec(package) is None
]
