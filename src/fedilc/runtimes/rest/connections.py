"""Count open connections, and choose which one to close if there are too many.

`http_server.py` accepts connections, adds them here, and reads what they send.
"""

from __future__ import annotations

import ipaddress
import random
import resource
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedilc.runtimes.rest.http_server import Connection

MAX_CONNECTIONS = 8192
RESERVED_DESCRIPTORS = 128
SPARE_CONNECTIONS = 256
CONNECTIONS_PER_SILO = 2
MAX_PER_SILO = 16
MAX_PER_VIEWER = 256


def raise_descriptor_limit() -> int:
    """Raise this process's soft limit on descriptors to the hard one; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def network_of(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the 2^64 IPv6 addresses of one network.

    >>> network_of("192.0.2.7"), network_of("2001:db8::7"), network_of("::ffff:192.0.2.7")
    ('192.0.2.7', '2001:db8::/64', '192.0.2.7')
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))


class Connections:
    """The open connections of a server; all methods belong to its event loop.

    A connection is unknown until a request on it has shown a valid credential. The number of unknown
    connections per address, and of all connections, is limited: beyond that an unknown one is closed. It is
    one of two drawn at random, preferably one on which nothing was received. So neither the newest nor the
    slowest is always the one, and clients that send one byte and wait cannot shut out the others.

    The number of connections per credential is limited too: beyond that its oldest one is closed. If a
    connection shows several credentials in turn, like a proxy's, the last one counts. Some file descriptors
    are reserved for the run's files.
    """

    def __init__(self, silos: int, descriptors: int) -> None:
        self.max_open = max(1, min(MAX_CONNECTIONS, descriptors - RESERVED_DESCRIPTORS))
        self.max_unknown = min(SPARE_CONNECTIONS + CONNECTIONS_PER_SILO * silos, self.max_open)
        self.open: set[Connection] = set()
        self.cut = 0
        self._unknown: dict[Connection, None] = {}
        self._by_address: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._credential: dict[Connection, str] = {}
        self.by_credential: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._random = random.SystemRandom()

    def add(self, connection: Connection) -> None:
        """Count a new connection; close an unknown one if there are too many now."""
        self.open.add(connection)
        self._unknown[connection] = None
        group = self._by_address[network_of(connection.address)]
        group[connection] = None
        if len(group) > self.max_unknown:
            self._cut(self._choose(group))
        elif len(self.open) > self.max_open:
            self._cut(self._choose(self._unknown))

    def trust(self, connection: Connection, credential: str | None) -> None:
        """Count a connection for the credential shown on it, such as "silos/north"; None has no limit."""
        if connection not in self.open:
            return
        self._set_known(connection)
        if credential is None or self._credential.get(connection) == credential:
            return
        self._release(connection)
        self._credential[connection] = credential
        group = self.by_credential[credential]
        group[connection] = None
        if len(group) > (MAX_PER_SILO if credential.startswith("silos/") else MAX_PER_VIEWER):
            self._cut(next(iter(group)))

    def is_trusted(self, connection: Connection) -> bool:
        """Return whether a valid credential was shown on an open connection."""
        return connection not in self._unknown

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self.open.discard(connection)
        self._set_known(connection)
        self._release(connection)

    def _choose(self, unknown: Iterable[Connection]) -> Connection:
        candidates = list(unknown)
        return min(
            self._random.sample(candidates, min(2, len(candidates))),
            key=lambda connection: connection.has_received,
        )

    def _cut(self, connection: Connection) -> None:
        self.cut += 1
        self.remove(connection)
        connection.abort()

    def _set_known(self, connection: Connection) -> None:
        """Stop counting a connection as unknown."""
        if connection in self._unknown:
            del self._unknown[connection]
            _discard(self._by_address, network_of(connection.address), connection)

    def _release(self, connection: Connection) -> None:
        """Stop counting a connection for its credential."""
        credential = self._credential.pop(connection, None)
        if credential is not None:
            _discard(self.by_credential, credential, connection)


def _discard(groups: dict[str, dict[Connection, None]], key: str, connection: Connection) -> None:
    """Remove a connection from its group, and the group if it was the last."""
    del groups[key][connection]
    if not groups[key]:
        del groups[key]
