"""Every open connection, and limits on how many there are of each client."""

from __future__ import annotations

import ipaddress
import random
import resource
from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

MAX_CONNECTIONS = 8192
RESERVED_DESCRIPTORS = 128
SPARE_CONNECTIONS = 256
CONNECTIONS_PER_SILO = 2
MOST_OF_A_SILO = 16
MOST_OF_A_VIEWER = 256


def raise_descriptor_limit() -> int:
    """Raise this process's soft limit on descriptors to the hard one; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def network_of(address: str) -> str:
    """Return what is counted as one client: an IPv4 address, or the 2^64 IPv6 addresses of one network.

    >>> network_of("192.0.2.7"), network_of("2001:db8::7"), network_of("::ffff:192.0.2.7")
    ('192.0.2.7', '2001:db8::/64', '192.0.2.7')
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


class Connection(Protocol):
    """A connection that can be cut, and whether anything came on it."""

    address: str
    heard: bool

    def abort(self) -> None:
        """Close at once, whatever is still to be sent."""
        ...


class Connections:
    """The open connections of a server; all methods belong to its event loop.

    A connection is unknown until a request on it has shown a good credential. An address may hold only so
    many unknown ones, and all addresses together only so many connections: beyond that one of the unknown is
    cut. It is one of two drawn at random, if possible one on which nothing came yet: neither who comes last
    nor who is slow is always the one, and those who send a byte and wait cannot shut out the others.

    A credential may hold only so many as well: beyond that its own oldest one is cut. A connection that shows
    several in turn, as a proxy's does, counts for the last. Some descriptors are left for the run's files.
    """

    def __init__(self, silos: int, descriptors: int) -> None:
        self.most = max(1, min(MAX_CONNECTIONS, descriptors - RESERVED_DESCRIPTORS))
        self.most_unknown = min(SPARE_CONNECTIONS + CONNECTIONS_PER_SILO * silos, self.most)
        self.open: set[Connection] = set()
        self.cut = 0
        self._unknown: dict[Connection, None] = {}
        self._by_address: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._credential: dict[Connection, str] = {}
        self._by_credential: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._random = random.SystemRandom()

    def add(self, connection: Connection) -> None:
        """Count a new connection; cut an unknown one if there are too many now."""
        self.open.add(connection)
        self._unknown[connection] = None
        same = self._by_address[network_of(connection.address)]
        same[connection] = None
        if len(same) > self.most_unknown:
            self._cut(self._chosen(same))
        elif len(self.open) > self.most:
            self._cut(self._chosen(self._unknown))

    def trust(self, connection: Connection, credential: str | None) -> None:
        """Count a connection for the credential shown on it, such as "silos/north"; None has no limit."""
        if connection not in self.open:
            return
        self._know(connection)
        if credential is None or self._credential.get(connection) == credential:
            return
        self._release(connection)
        self._credential[connection] = credential
        same = self._by_credential[credential]
        same[connection] = None
        if len(same) > (MOST_OF_A_SILO if credential.startswith("silos/") else MOST_OF_A_VIEWER):
            self._cut(next(iter(same)))

    def is_trusted(self, connection: Connection) -> bool:
        """Return whether a good credential was shown on an open connection."""
        return connection not in self._unknown

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self.open.discard(connection)
        self._know(connection)
        self._release(connection)

    def _chosen(self, unknown: Iterable[Connection]) -> Connection:
        some = list(unknown)
        return min(self._random.sample(some, min(2, len(some))), key=lambda connection: connection.heard)

    def _cut(self, connection: Connection) -> None:
        self.cut += 1
        self.remove(connection)
        connection.abort()

    def _know(self, connection: Connection) -> None:
        """Count a connection as unknown no longer."""
        if connection in self._unknown:
            del self._unknown[connection]
            _discard(self._by_address, network_of(connection.address), connection)

    def _release(self, connection: Connection) -> None:
        """Count a connection for no credential."""
        credential = self._credential.pop(connection, None)
        if credential is not None:
            _discard(self._by_credential, credential, connection)


def _discard(groups: dict[str, dict[Connection, None]], key: str, connection: Connection) -> None:
    """Remove a connection from its group, and the group if it was the last."""
    del groups[key][connection]
    if not groups[key]:
        del groups[key]
