"""Recognise the addresses of this machine itself."""

from __future__ import annotations

import ipaddress


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
