"""Tell systemd that a service is ready and alive (sd_notify)."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send a state such as READY=1 to systemd; nothing happens outside a service of Type=notify."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect("\0" + path[1:] if path.startswith("@") else path)
        sock.sendall(state.encode())


def watchdog_seconds() -> float:
    """Return how often systemd wants to hear that the service is alive: twice per its WatchdogSec."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2e6 if microseconds.isdecimal() else 30.0
