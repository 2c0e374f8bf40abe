"""Accept connections and read requests, with limits that apply before a token is shown.

All of it runs in the event loop of the server's thread, so that nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import random
import resource
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NoReturn

import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_CONNECTIONS = 8192
RESERVED_DESCRIPTORS = 128  # for the run's files
SPARE_CONNECTIONS = 256
CONNECTIONS_PER_SILO = 2  # one in use, and a new one after a break
MAX_PER_SILO = 16
MAX_PER_VIEWER = 256
MAX_HEADER_BYTES = 32 << 10
MAX_URL_BYTES = 8 << 10
MAX_HEADERS = 100
MAX_PIPELINED = 8
MAX_DISCARDED_BYTES = 64 << 20  # of a refused body, read so that the connection can be used again
HEADER_SECONDS = 10.0
LINGER_SECONDS = 1.0
DISCARD_SECONDS = 60.0
RETRY_SECONDS = 1.0
ACCEPT_BATCH = 64


class Server(uvicorn.Server):
    """A uvicorn server with limits on connections, handshakes and headers."""

    def __init__(
        self, config: uvicorn.Config, connections: Connections, refused: Callable[[int, str, str], None]
    ) -> None:
        super().__init__(config)
        self.connections, self.refused = connections, refused
        self.servers = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen; accept connections here, to count them before the TLS handshake."""
        for sock in sockets or ():
            sock.setblocking(False)
            self._listen(sock)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, and shut down."""
        for sock in sockets or ():
            asyncio.get_running_loop().remove_reader(sock)
        await super().shutdown(sockets)

    def _listen(self, sock: socket.socket) -> None:
        if not self.should_exit:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                accepted, peer = sock.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:  # no descriptors are left: accept the waiting clients later
                loop = asyncio.get_running_loop()
                loop.remove_reader(sock)
                loop.call_later(RETRY_SECONDS, self._listen, sock)
                return
            Connection(self, accepted, str(peer[0])).begin()


class Connection:
    """A connection from its first moment, before the TLS handshake."""

    def __init__(self, server: Server, sock: socket.socket, address: str) -> None:
        self.server = server
        self.address = address
        self.transport: asyncio.Transport | None = None
        self.has_received = False
        self._sock = sock
        self._cut = False

    def begin(self) -> None:
        """Count the connection, and start to serve it."""
        self._sock.setblocking(False)
        self.server.connections.add(self)
        tasks, task = self.server.server_state.tasks, asyncio.ensure_future(self._open())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _open(self) -> None:
        """Do the TLS handshake, if the server has a certificate, and start the HTTP protocol."""
        context = self.server.config.ssl
        timeout = HEADER_SECONDS if context is not None else None
        try:
            # Between `begin` and this task, others may have made room by cutting this connection.
            if self._cut:
                self._sock.close()
            else:
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(
                    self._protocol, self._sock, ssl=context, ssl_handshake_timeout=timeout
                )
        except OSError:  # includes timeouts and TLS errors
            # No protocol was made, so nothing else will remove the connection.
            self.server.connections.remove(self)

    def _protocol(self) -> asyncio.Protocol:
        server = self.server
        protocol = BoundedProtocol(server.config, server.server_state, server.lifespan.state)
        protocol.connection = self
        return protocol

    def abort(self) -> None:
        """Close at once, even if something is still to be sent."""
        self._cut = True
        if self.transport is not None:
            self.transport.abort()
        else:
            # There is no transport before the handshake is over: shutting down the socket makes it fail, and
            # `_open` then closes it. Closing it here could free its number for another connection meanwhile.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the common and DNS names in the client's certificate, if it has shown one."""
        secure = self.transport.get_extra_info("ssl_object") if self.transport is not None else None
        certificate = (secure.getpeercert() if secure is not None else None) or {}
        subject = [field for part in certificate.get("subject", ()) for field in part]
        fields = [*subject, *certificate.get("subjectAltName", ())]
        return frozenset(value for kind, value in fields if kind in ("commonName", "DNS"))

    def trust(self, credential: str | None) -> None:
        """Count this connection as one on which a valid credential was shown."""
        self.server.connections.trust(self, credential)


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
        # Two at random, not the newest or the oldest: an attacker who opens many cannot choose who is cut.
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


def raise_descriptor_limit() -> int:
    """Raise this process's soft limit on descriptors to the hard one; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


class TooLargeError(Exception):
    """The headers of a request are larger than allowed."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits on the size, the number and the time of headers.

    Bytes are counted since the last progress: complete headers, a part of a body, a complete request. What
    makes no progress is endless headers, URLs, trailers and chunk extensions.
    """

    connection: Connection

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._unproductive = 0
        self._in_headers = True
        self._closing_soon = False
        self._refused = 400
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Start to wait for the first request."""
        super().connection_made(transport)
        self.connection.transport = transport
        self.connection.has_received = self.config.is_ssl  # the TLS handshake is done by now
        self._abort_after(HEADER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        self.connection.server.connections.remove(self.connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data; refuse headers that do not end."""
        if self._closing_soon:
            return
        self.connection.has_received = True
        # Counted before parsing, which resets it at each progress: what is left is what led nowhere.
        self._unproductive += len(data)
        super().data_received(data)
        if self._closing_soon:
            return
        if self._unproductive > MAX_HEADER_BYTES:
            self._refused = 431
            self.send_400_response("")
        elif self._timer is None and (self._in_headers or self._idle()):
            self._abort_after(HEADER_SECONDS)

    def _idle(self) -> bool:
        """Return whether no request is being served: a blank line must not keep a connection open."""
        return self.cycle is None or self.cycle.response_complete

    def send_400_response(self, _msg: str) -> None:
        """Refuse what is not HTTP or is too large, and close the connection."""
        reason = "this is not HTTP" if self._refused == 400 else "the request's headers are too large"
        body = f'{{"detail":"{reason}"}}'.encode()
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[self._refused] + head.encode() + body)
        self.connection.server.refused(self._refused, self.connection.address, reason)
        self._stop_reading()

    def on_message_begin(self) -> None:
        """Start a request; refuse clients that send many without waiting for responses."""
        if len(self.pipeline) >= MAX_PIPELINED:
            self._too_large(431)
        self._in_headers = True
        super().on_message_begin()
        self.scope["state"]["connection"] = self.connection

    def on_url(self, url: bytes) -> None:
        """Receive a part of the URL."""
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._too_large(414)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header or a trailer."""
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS or len(value) > MAX_HEADER_BYTES:
            self._too_large(431)

    def on_headers_complete(self) -> None:
        """Serve the request."""
        self._unproductive, self._in_headers = 0, False
        self._stop_timer()
        super().on_headers_complete()
        if not self.pipeline and self._has_large_body():
            # The client waits until the application asks for the body; otherwise uvicorn buffers the start of
            # every body, before the application limits how many are received at a time.
            self.flow.pause_reading()
        self.cycle.transport = _Closing(self)  # type: ignore[assignment]  # a stand-in with the methods used

    def on_body(self, body: bytes) -> None:
        """Receive a part of the body."""
        self._unproductive = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request; if its response is complete already, wait for the next request."""
        self._unproductive = 0
        super().on_message_complete()
        if self.cycle.response_complete:
            self._abort_after(HEADER_SECONDS)

    def on_response_complete(self) -> None:
        """Decide whether to read the rest of a body whose response was complete first.

        If it is small enough, it is read, so that the connection can be used again; the limit is larger for a
        client that has shown a valid token.
        """
        if self._closing_soon:
            return
        super().on_response_complete()
        if self.pipeline or not self.cycle.response_complete or not self.cycle.more_body:
            return
        trusted = self.connection.server.connections.is_trusted(self.connection)
        if self._declared_bytes() > (MAX_DISCARDED_BYTES if trusted else MAX_HEADER_BYTES):
            self._stop_reading()
        else:
            self._abort_after(DISCARD_SECONDS)

    def _has_large_body(self) -> bool:
        return self.scope["method"] in ("PUT", "POST") and self._declared_bytes() > HIGH_WATER_LIMIT

    def _declared_bytes(self) -> float:
        declared = dict(self.headers).get(b"content-length", b"")
        return int(declared) if declared.isdigit() else math.inf

    def _too_large(self, status: int) -> NoReturn:
        self._refused = status
        raise TooLargeError

    def close_soon(self) -> None:
        """Close after a response; if the request is not complete, give the client time to read it first."""
        if self.cycle.more_body:
            self._stop_reading()
        else:
            self.transport.close()

    def _stop_reading(self) -> None:
        """Stop reading, and close once the client had time to receive what was written."""
        self._closing_soon = True
        self.flow.pause_reading()
        self._abort_after(LINGER_SECONDS)

    def _abort_after(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self.connection.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Closing:
    """The transport of a response; closing it leaves the client time to read the response."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing
        self.close = protocol.close_soon
