"""A site's component of a job believes only its own process."""

from __future__ import annotations

import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'fedilc[nvflare]'")

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedilc.runtimes.nvflare.executor import is_simulated


def test_no_job_makes_a_site_believe_that_it_is_simulated() -> None:
    context = FLContext()
    context.set_prop(FLContextKey.CURRENT_RUN, "simulate_job", private=False, sticky=True)
    context.set_prop(FLContextKey.CURRENT_JOB_ID, "simulate_job", private=False, sticky=True)
    assert context.get_job_id() == "simulate_job"
    assert not is_simulated(context)
