"""What clients without a token can cost: headers without end, silent connections, unread bodies."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from certificates import make_certificates

from fedilc.runtimes.rest import http_server
from fedilc.runtimes.rest import http_server as connections
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.auth import Tokens, add_token
from fedilc.runtimes.rest.coordinator import listening, make_app
from fedilc.runtimes.rest.http_server import (
    SPARE_CONNECTIONS,
)
from rest import bearer, eventually, queue_of, raw_connection, served

START = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n"
ENDLESS = {
    "a header's value": (START + b"X: ", b"x" * 65_536, 431),
    "a header's name": (START, b"x" * 65_536, 431),
    "headers": (START, b"X: y\r\n" * 10_000, 431),
    "the URL": (b"GET /", b"x" * 65_536, 414),
    "the query": (b"GET /v1/health?", b"x" * 65_536, 414),
    "the method": (b"", b"G" * 65_536, 400),
    "trailers": (START + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"x" * 65_536, 200),
    "a chunk's extension": (START + b"Transfer-Encoding: chunked\r\n\r\n1;x=", b"x" * 65_536, 200),
    "a body": (START + b"Content-Length: 999999999999\r\n\r\n", b"x" * 65_536, 200),
    "requests": (b"", (START + b"\r\n") * 2_000, 431),
}


def flood(raw: socket.socket, start: bytes, more: bytes, most: int) -> tuple[int, bytes]:
    """Send without end; how many bytes went out until the connection ended, and what came back."""
    sent, answer, alive = 0, b"", True
    with contextlib.suppress(ConnectionError):
        raw.sendall(start)
        while alive and sent < most:
            readable, writable, _ = select.select([raw], [raw], [], 5)
            if readable:
                part = raw.recv(65_536)
                answer, alive = (answer + part)[-4096:] if answer else part, bool(part)
            if alive and writable:
                sent += raw.send(more)
    return sent, answer


@pytest.mark.parametrize("what", ENDLESS)
def test_what_has_no_end_is_cut_soon(what: str) -> None:
    start, more, status = ENDLESS[what]
    with served(queue_of()) as client, raw_connection(client) as raw:
        raw.setblocking(False)
        sent, answer = flood(raw, start, more, 64 << 20)
        assert int(answer.split()[1]) == status
        # What the kernels of both ends hold, for a connection that is no longer read.
        assert sent < 32 << 20
        assert client.get("/v1/health").status_code == 200


def test_requests_of_usual_size_are_served() -> None:
    headers = {f"X-{number}": "v" * 250 for number in range(80)}
    with served(queue_of()) as client:
        assert client.get(f"/v1/health?{'x' * 2000}", headers=headers).status_code == 200
        assert client.get("/v1/status", headers={"X": "v" * 20_000}).status_code == 200


def test_headers_that_never_end_are_given_up_however_slowly_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 0.5)
    with served(queue_of()) as client, raw_connection(client) as first, raw_connection(client) as second:
        second.sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in second.recv(4096)
        raws, ended = [first, second], dict[socket.socket, float]()
        started = time.monotonic()
        while raws and time.monotonic() - started < 4:
            for raw in list(raws):
                try:
                    raw.sendall(b"G" if raw is second else b"GET / HTTP/1.1\r\nX: x\r\n"[:1])
                    if select.select([raw], [], [], 0.05)[0] and not raw.recv(4096):
                        raise ConnectionError
                except ConnectionError:
                    ended[raw] = time.monotonic() - started
                    raws.remove(raw)
        assert not raws
        assert max(ended.values()) < 3


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextlib.contextmanager
def silent(client: httpx.Client, number: int) -> Iterator[list[socket.socket]]:
    """Connections on which nothing is said."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(raw_connection(client)) for _ in range(number)]


def test_eleven_hundred_silent_connections_shut_out_nobody_and_take_few_descriptors(tmp_path: Path) -> None:
    """A silo with a token keeps its connection, and another may still come, though all share an address."""
    file = tmp_path / "tokens.json"
    token = add_token(file, "a")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("needs 2,048 descriptors: both ends of each connection are in this process")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        with served(queue_of(), Tokens.read(file)) as client:
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
            assert client.get("/v1/silos/a/task", headers=bearer(token)).status_code == 204
            pool = client._transport._pool
            kept = pool.connections[0]
            with silent(client, 1100):
                assert eventually(lambda: descriptors() < 1100 + SPARE_CONNECTIONS + 100)
                assert client.get("/v1/silos/a/task", headers=bearer(token)).status_code == 204
                assert pool.connections == [kept]
                with httpx.Client(base_url=client.base_url, trust_env=False) as other:
                    assert other.get("/v1/silos/a/task", headers=bearer(token)).status_code == 204
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_that_never_agree_on_tls_are_cut_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SPARE_CONNECTIONS", 10)
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 3.0)
    made = make_certificates(tmp_path)
    address = Address(port=0, certificate=made.certificate, key=made.key)
    before = descriptors()
    with listening(make_app(queue_of(), None), address) as port, contextlib.ExitStack() as stack:
        raws = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(100)]
        trusting = ssl.create_default_context(cafile=str(made.authority))
        # Which of the unknown connections is cut is drawn: like a silo, this client tries again.
        retrying = httpx.HTTPTransport(verify=trusting, trust_env=False, retries=5)
        with httpx.Client(transport=retrying) as client:
            assert client.get(f"https://127.0.0.1:{port}/v1/health").status_code == 200
        assert descriptors() - before < 100 + 30
        assert eventually(lambda: all(ended(raw) for raw in raws))


def ended(raw: socket.socket) -> bool:
    try:
        return bool(select.select([raw], [], [], 0)[0]) and raw.recv(1) == b""
    except ConnectionError:
        return True
