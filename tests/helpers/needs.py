"""What a test needs of the machine; where it is missing, a skip that says what to install."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="looks at processes and their memory in /proc, which only Linux has: run it there",
)


def need(command: str, package: str, use: str) -> str:
    """Where a command is; skips where it is not installed."""
    found = shutil.which(command, path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    if found is None:
        pytest.skip(f"needs the command {command}, which {use}: install {package}")
    return found
