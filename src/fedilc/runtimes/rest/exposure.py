"""Find out what is exposed: hosts other than this machine, and secret files that others can read."""

from __future__ import annotations

import ipaddress
import stat
import warnings
from pathlib import Path

from fedilc.errors import FedILCWarning


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine itself.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "10.0.0.7", "example.org")]
    [True, True, True, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def warn_if_public(path: Path | None, what: str) -> None:
    """Warn if every user of this machine can read or change a file that holds a secret."""
    if path is None or not path.exists():
        return
    if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        warnings.warn(
            f"every user of this machine can read or change {path}, {what}; chmod 600 it",
            FedILCWarning,
            stacklevel=2,
        )
