"""Every open connection, and limits on those that have not shown a token."""

from __future__ import annotations

import resource
from collections import defaultdict
from typing import Protocol

MAX_CONNECTIONS = 8192
RESERVED_DESCRIPTORS = 128
SPARE_CONNECTIONS = 64
CONNECTIONS_PER_SILO = 2


def raise_descriptor_limit() -> int:
    """Raise this process's soft limit on descriptors to the hard one; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


class Connection(Protocol):
    """A connection that can be cut."""

    address: str

    def abort(self) -> None:
        """Close at once, whatever is still to be sent."""
        ...


class Connections:
    """The open connections of a server; all methods belong to its event loop.

    A connection is unknown until a request on it has shown a good token. An address may hold only so many
    unknown ones, and all addresses together only so many connections: beyond that the oldest unknown one is
    cut, not the new one, so that those who hold silent connections cannot shut out a silo. Some descriptors
    are left for the run's own files.
    """

    def __init__(self, silos: int, descriptors: int) -> None:
        self.most = max(1, min(MAX_CONNECTIONS, descriptors - RESERVED_DESCRIPTORS))
        self.most_unknown = min(SPARE_CONNECTIONS + CONNECTIONS_PER_SILO * silos, self.most)
        self.open: set[Connection] = set()
        self.cut = 0
        self._unknown: dict[Connection, None] = {}
        self._by_address: defaultdict[str, dict[Connection, None]] = defaultdict(dict)

    def add(self, connection: Connection) -> None:
        """Count a new connection; cut the oldest unknown one if there are too many now."""
        self.open.add(connection)
        self._unknown[connection] = None
        same = self._by_address[connection.address]
        same[connection] = None
        if len(same) > self.most_unknown:
            self._cut(next(iter(same)))
        elif len(self.open) > self.most:
            self._cut(next(iter(self._unknown)))

    def trust(self, connection: Connection) -> None:
        """Exempt a connection, on which a good token was shown, from being cut."""
        if connection in self._unknown:
            self._forget(connection)

    def is_trusted(self, connection: Connection) -> bool:
        """Return whether a good token was shown on an open connection."""
        return connection not in self._unknown

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self.open.discard(connection)
        self.trust(connection)

    def _cut(self, connection: Connection) -> None:
        self.cut += 1
        self.remove(connection)
        connection.abort()

    def _forget(self, connection: Connection) -> None:
        del self._unknown[connection]
        same = self._by_address[connection.address]
        del same[connection]
        if not same:
            del self._by_address[connection.address]
