"""An HTTP server that bounds what a client can cost before it has shown a token.

uvicorn's parser sets no limit on headers, and its connections have none on their number or on the time that a
header may take. Both are added here; a request that is served costs no more than before.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable
from functools import cached_property
from typing import Any, NoReturn

import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fedilc.runtimes.rest.connections import Connections

MAX_HEADER_BYTES = 32 << 10
MAX_URL_BYTES = 8 << 10
MAX_HEADERS = 100
MAX_PIPELINED = 8
MAX_DISCARDED_BYTES = 64 << 20
HEADER_SECONDS = 10.0
LINGER_SECONDS = 1.0
DISCARD_SECONDS = 60.0
RETRY_SECONDS = 1.0
ACCEPTS_AT_ONCE = 64


class Server(uvicorn.Server):
    """uvicorn, with limits on connections, handshakes and headers."""

    def __init__(
        self, config: uvicorn.Config, connections: Connections, refused: Callable[[int, str, str], None]
    ) -> None:
        super().__init__(config)
        self.connections, self.refused = connections, refused
        self.servers = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; connections are accepted here, so that they are counted before TLS."""
        for sock in sockets or ():
            sock.setblocking(False)
            self._listen(sock)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and end."""
        for sock in sockets or ():
            asyncio.get_running_loop().remove_reader(sock)
        await super().shutdown(sockets)

    def _listen(self, sock: socket.socket) -> None:
        if not self.should_exit:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                accepted, peer = sock.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:  # no descriptors are left: those who wait are accepted later
                loop = asyncio.get_running_loop()
                loop.remove_reader(sock)
                loop.call_later(RETRY_SECONDS, self._listen, sock)
                return
            Accepted(self, accepted, str(peer[0])).begin()


class Accepted:
    """A connection from its first moment, before TLS is agreed on."""

    def __init__(self, server: Server, sock: socket.socket, address: str) -> None:
        self.server = server
        self.address = address
        self.transport: asyncio.Transport | None = None
        self.heard = False
        self._sock = sock
        self._cut = False

    def begin(self) -> None:
        """Count the connection, and serve it."""
        self._sock.setblocking(False)
        self.server.connections.add(self)
        tasks, task = self.server.server_state.tasks, asyncio.ensure_future(self._open())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _open(self) -> None:
        """Agree on TLS, if that is spoken here, and hand over to HTTP."""
        context = self.server.config.ssl
        timeout = HEADER_SECONDS if context is not None else None
        try:
            if self._cut:
                self._sock.close()
            else:
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(
                    self._protocol, self._sock, ssl=context, ssl_handshake_timeout=timeout
                )
        except OSError:  # among them timeouts and errors of TLS
            self.server.connections.remove(self)

    def _protocol(self) -> asyncio.Protocol:
        server = self.server
        protocol = BoundedProtocol(server.config, server.server_state, server.lifespan.state)
        protocol.accepted = self
        return protocol

    def abort(self) -> None:
        """Close at once, whatever is still to be sent."""
        self._cut = True
        if self.transport is not None:
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    @cached_property
    def names(self) -> frozenset[str]:
        """The common and DNS names in the client's certificate, if it has shown one."""
        secure = self.transport.get_extra_info("ssl_object") if self.transport is not None else None
        found = secure.getpeercert() if secure is not None else None
        if not found:
            return frozenset()
        common = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
        return frozenset(common) | {value for key, value in found.get("subjectAltName", ()) if key == "DNS"}

    def trust(self, credential: str | None) -> None:
        """Count this connection as one on which a good credential was shown."""
        self.server.connections.trust(self, credential)


class TooLargeError(Exception):
    """A request's headers are more than is accepted."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP connection; headers have a largest size, a largest number and a longest time.

    Bytes are counted from the last progress: complete headers, a part of a body, a complete request. What
    remains without progress are headers and URLs without end, trailers and extensions of chunks.
    """

    accepted: Accepted

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._unproductive = 0
        self._in_headers = True
        self._hung_up = False
        self._refused = 400
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self.accepted.transport = transport
        self.accepted.heard = self.config.is_ssl  # by now the client has said how to encrypt
        self._abort_after(HEADER_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        self.accepted.server.connections.remove(self.accepted)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless headers go on without end."""
        if self._hung_up:
            return
        self.accepted.heard = True
        self._unproductive += len(data)
        super().data_received(data)
        if self._hung_up:
            return
        if self._unproductive > MAX_HEADER_BYTES:
            self._refused = 431
            self.send_400_response("")
        elif self._timer is None and (self._in_headers or self._idle()):
            self._abort_after(HEADER_SECONDS)

    def _idle(self) -> bool:
        """Whether no request is being served: a blank line alone must not keep a connection open."""
        return self.cycle is None or self.cycle.response_complete

    def send_400_response(self, _msg: str) -> None:
        """Refuse what is not HTTP, or too large, and hang up."""
        words = "this is not HTTP" if self._refused == 400 else "the request's headers are too large"
        body = f'{{"detail":"{words}"}}'.encode()
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[self._refused] + head.encode() + body)
        self.accepted.server.refused(self._refused, self.accepted.address, words)
        self._hang_up()

    def on_message_begin(self) -> None:
        """Begin a request; clients that send many without waiting for answers are refused."""
        if len(self.pipeline) >= MAX_PIPELINED:
            self._too_large(431)
        self._in_headers = True
        super().on_message_begin()
        self.scope["state"]["connection"] = self.accepted

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._too_large(414)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS or len(value) > MAX_HEADER_BYTES:
            self._too_large(431)

    def on_headers_complete(self) -> None:
        """Serve the request."""
        self._unproductive, self._in_headers = 0, False
        self._stop_timer()
        super().on_headers_complete()
        if not self.pipeline and self._has_large_body():
            self.flow.pause_reading()  # it waits on the network until the application asks for it
        self.cycle.transport = _Closing(self)  # type: ignore[assignment]  # a stand-in with the methods used

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unproductive = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request; if it was answered before, the next one is waited for."""
        self._unproductive = 0
        super().on_message_complete()
        if self.cycle.response_complete:
            self._abort_after(HEADER_SECONDS)

    def on_response_complete(self) -> None:
        """Decide what happens to the rest of a body that was answered before it was complete.

        A small one is read, so that the connection can be used again; that of a client with a good token may
        be larger.
        """
        if self._hung_up:
            return
        super().on_response_complete()
        if self.pipeline or not self.cycle.response_complete or not self.cycle.more_body:
            return
        known = self.accepted.server.connections.is_trusted(self.accepted)
        if self._declared_bytes() > (MAX_DISCARDED_BYTES if known else MAX_HEADER_BYTES):
            self._hang_up()
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
        """Close after a response; one that came before the request's end must be read before that."""
        if self.cycle.more_body:
            self._hang_up()
        else:
            self.transport.close()

    def _hang_up(self) -> None:
        """Read no more, and close when what was written has had time to arrive."""
        self._hung_up = True
        self.flow.pause_reading()
        self._abort_after(LINGER_SECONDS)

    def _abort_after(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self.accepted.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Closing:
    """A connection as a response sees it: to close it does not cut off what the client has yet to read."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing
        self.close = protocol.close_soon
