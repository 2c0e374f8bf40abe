"""Examples in docstrings are tested too, where the engine that their module needs is installed.

Many tests wait, for processes that start and timeouts that run out: one worker more than there are cores.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

ENGINES = {"nvflare": "nvflare", "flower": "flwr"}

collect_ignore_glob = [
    f"src/fedilc/runtimes/{folder}/*" for folder, package in ENGINES.items() if find_spec(package) is None
]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return (os.cpu_count() or 1) + 1
