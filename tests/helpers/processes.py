"""Processes that a test started and that must have ended."""

from __future__ import annotations

import os
import signal
import time


def wait_until_empty(group: int) -> None:
    """Wait until a group has no process left; raise if it takes long."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(group, signal.SIGKILL)
    raise AssertionError("a process was left over")
