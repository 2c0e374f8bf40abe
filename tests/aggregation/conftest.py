"""Every test of this folder runs on the compiled kernels and on plain torch: one contract for both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedilc.aggregation import _kernels


@pytest.fixture(params=["kernels", "torch"], autouse=True, scope="module")
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(_kernels, "usable", lambda _: False)
        yield
