"""What every test may use: the modules of `helpers` and `oracles`, a generator, a command that refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "oracles"))
sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from command import Refusal

from fedilc.aggregation import _kernels

settings.register_profile("fedilc", deadline=None, max_examples=100, derandomize=True)
settings.load_profile("fedilc")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the slow files, so that no worker has one of them left when the others are done."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(params=["kernels", "torch"], scope="module")
def compiled_or_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test on the compiled kernels and on plain torch: one contract for both."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(_kernels, "usable", lambda _: False)
        yield


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20221)


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
    return Refusal(monkeypatch, capsys)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tests run side by side; threads of small tensors would only wait for each other."""
    torch.set_num_threads(1)
