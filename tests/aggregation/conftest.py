"""Every test of this folder runs on the compiled kernels and on plain torch."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def _both_ways(compiled_or_torch: None) -> None:
    pass
