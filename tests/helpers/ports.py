"""Ports of the loopback for processes that tests start."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time


def free_port() -> int:
    """A port that no outgoing connection takes while a coordinator is away from it; from 20,000 up."""
    dice = random.Random(os.getpid() ^ time.monotonic_ns())
    while True:
        port = dice.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
