"""Examples in docstrings are tested too, where the engine that their module needs is installed.

Many tests wait, for processes that start and timeouts that run out: two workers more than there are cores.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

ENGINES = {"nvflare": "nvflare", "flower": "flwr"}

collect_ignore_glob = [
    f"src/fedilc/runtimes/{folder}/*" for folder, package in ENGINES.items() if find_spec(package) is None
]

LONGEST = (
    "runtimes/nvflare/test_deployment",
    "runtimes/nvflare/test_simulator",
    "runtimes/test_distributed",
    "test_jobs",
    "runtimes/rest/test_faults",
    "federation/test_checkpoint",
    "test_reproduction",
    "aggregation/test_geometric",
    "runtimes/rest/test_page",
    "runtimes/rest/test_same_as_local",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that none of them is left alone at the end; all others as they came."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition(".py")[0].removeprefix("tests/"), len(ranks)))
