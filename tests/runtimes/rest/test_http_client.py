"""A silo's line: it waits, tries again, grows its pauses, and knows when there is no hope."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

from fedilc.errors import ConfigError
from fedilc.runtimes.rest.http_client import MAX_PAUSE_SECONDS, CoordinatorError, HttpClient

Handle = Callable[[BaseHTTPRequestHandler, int], None]


@contextmanager
def server(handle: Handle) -> Iterator[str]:
    """Anything that speaks HTTP; `handle` is given the request and how many came before."""
    count = 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal count
            count += 1
            handle(self, count - 1)

        def log_message(self, *_: object) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_address[1]}"
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def reply(request: BaseHTTPRequestHandler, status: int, body: bytes = b"{}", **headers: str) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def line_to(url: str, **options: Any) -> tuple[HttpClient, list[float]]:
    """A line that does not sleep but remembers for how long it would have."""
    slept: list[float] = []
    return HttpClient(url, options.pop("token", None), sleep=slept.append, **options), slept


def test_what_fails_for_a_while_is_tried_again() -> None:
    statuses = [500, 502, 503, 408, 429, 200]
    with server(lambda request, n: reply(request, statuses[n])) as url:
        line, slept = line_to(url)
        assert line.call("GET", "/").status == 200
    assert len(slept) == 5


def test_pauses_grow_up_to_a_limit_and_vary() -> None:
    line, slept = line_to(f"http://127.0.0.1:{free_port()}", give_up_after=1e9)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 15:
            raise InterruptedError

    line.sleep = sleep
    with pytest.raises(InterruptedError):
        line.call("GET", "/")
    for number, seconds in enumerate(slept):
        usual = min(MAX_PAUSE_SECONDS, 0.2 * 2**number)
        assert 0.5 * usual <= seconds <= 1.5 * usual
    assert (
        len({round(seconds / min(MAX_PAUSE_SECONDS, 0.2 * 2**n), 6) for n, seconds in enumerate(slept)}) > 10
    )


@pytest.mark.parametrize(
    ("told", "least", "most"),
    [("7", 7, 7), ("1e9", 120, 120), ("-5", 0, 1), ("Wed, 21 Oct 2026 07:28:00 GMT", 0, 1), ("", 0, 1)],
)
def test_a_coordinator_may_ask_for_a_pause_within_reason(told: str, least: float, most: float) -> None:
    with server(lambda request, n: reply(request, 200 if n else 429, Retry_After=told)) as url:
        line, slept = line_to(url)
        line.call("GET", "/")
    assert least <= slept[0] <= most


def test_it_gives_up_after_as_long_as_it_was_told_and_not_later() -> None:
    line = HttpClient(f"http://127.0.0.1:{free_port()}", None, give_up_after=0.7)
    started = time.monotonic()
    with pytest.raises(CoordinatorError, match=r"could not be reached for 0\.7 s"):
        line.call("GET", "/")
    assert time.monotonic() - started >= 0.7


def test_it_says_what_it_waits_for() -> None:
    said: list[tuple[str, ...]] = []
    line = HttpClient(
        f"http://127.0.0.1:{free_port()}", None, give_up_after=0.1, log=lambda *words: said.append(words)
    )
    with pytest.raises(CoordinatorError):
        line.call("GET", "/")
    assert "waiting for the coordinator" in said[0][0]
    assert said[0][1] == "waiting"


def test_an_answer_cut_in_the_middle_is_asked_for_again() -> None:
    def handle(request: BaseHTTPRequestHandler, n: int) -> None:
        if n:
            reply(request, 200, b"whole")
            return
        request.send_response(200)
        request.send_header("Content-Length", "100")
        request.end_headers()
        request.wfile.write(b"half")
        request.close_connection = True

    with server(handle) as url:
        line, slept = line_to(url)
        assert line.call("GET", "/").body == b"whole"
    assert len(slept) == 1


def test_an_answer_larger_than_can_be_is_not_taken_into_memory() -> None:
    with server(lambda request, _: reply(request, 200, b"x" * 5000)) as url:
        line, _ = line_to(url)
        assert len(line.call("GET", "/", 5000).body) == 5000
        with pytest.raises(CoordinatorError, match="more than the 4999 bytes"):
            line.call("GET", "/", 4999)


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "deflate", "br"])
def test_an_answer_that_is_encoded_is_refused_and_never_decoded(encoding: str) -> None:
    """Ten kilobytes, packed twice, were four gigabytes."""
    bomb = gzip.compress(gzip.compress(bytes(64 << 20)))
    with server(lambda request, _: reply(request, 200, bomb, Content_Encoding=encoding)) as url:
        line, slept = line_to(url)
        tracemalloc.start()
        try:
            with pytest.raises(CoordinatorError, match="which was not asked for"):
                line.call("GET", "/")
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
    assert slept == []


def test_a_refusal_cannot_move_the_terminals_cursor() -> None:
    body = json.dumps({"detail": "no\x1b[2J\x07 en\u202etry\r\n!"}).encode()
    with server(lambda request, _: reply(request, 403, body)) as url:
        assert line_to(url)[0].call("GET", "/").reason == "no [2J en try !"


def test_redirections_are_not_followed_with_the_token() -> None:
    seen: list[str | None] = []

    def handle(request: BaseHTTPRequestHandler, _: int) -> None:
        seen.append(request.headers["Authorization"])
        reply(request, 301, b"", Location="https://elsewhere.example/")

    with server(handle) as url:
        line, _ = line_to(url, token="secret")
        answer = line.call("GET", "/")
    assert (answer.status, answer.location) == (301, "https://elsewhere.example/")
    assert "elsewhere.example" in answer.reason
    assert seen == ["Bearer secret"]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000, b'{"detail": [1]}', b"\xff"])
def test_a_refusal_without_a_sentence_is_given_one(body: bytes) -> None:
    with server(lambda request, _: reply(request, 403, body)) as url:
        assert line_to(url)[0].call("GET", "/").reason == "it responds with status 403"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host",
        "host:8443",
        "ftp://host",
        "https://",
        "http://[",
        "https://ho st:x",
        "://",
        "https://h:99999",
    ],
)
def test_what_is_no_address_is_one_sentence(url: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        HttpClient(url, None)


@pytest.mark.parametrize(
    "url", ["http://coordinator.example:8443", "http://10.0.0.7", "http://[2001:db8::1]:1"]
)
def test_no_token_travels_in_the_open_to_another_machine(url: str) -> None:
    with pytest.raises(ConfigError, match="`allow_insecure=True`"):
        HttpClient(url, "secret")
    HttpClient(url, "secret", allow_insecure=True).close()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost", "http://[::1]:7"])
def test_this_machine_itself_needs_no_tls(url: str) -> None:
    HttpClient(url, None).close()


@pytest.mark.parametrize("token", ["", "two words", "two\nlines", "é", "tab\tbed"])
def test_what_is_no_token_is_one_sentence(token: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        HttpClient("http://127.0.0.1", token)


def test_an_address_that_does_not_speak_tls_is_one_sentence() -> None:
    with server(lambda request, _: reply(request, 200)) as url:
        line, slept = line_to(url.replace("http:", "https:"))
        with pytest.raises(CoordinatorError, match="does not use TLS"):
            line.call("GET", "/")
    assert slept == []


@pytest.mark.parametrize("text", [None, "", "no certificate"])
def test_an_authority_that_is_none_is_one_sentence(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "ca.pem").write_text(text)
    with pytest.raises(ConfigError, match="cannot be used"):
        HttpClient("https://127.0.0.1", None, tmp_path / "ca.pem")


def test_proxies_of_the_environment_are_followed_except_to_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hospitals let traffic out through proxies; a test on loopback must not go there."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        port = proxy.getsockname()[1]
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        line, _ = line_to("http://coordinator.example", allow_insecure=True, give_up_after=0)
        proxy.settimeout(20)

        def refuse() -> bytes:
            connection, _ = proxy.accept()
            with connection:
                return connection.recv(4096)

        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(refuse)
            with pytest.raises(CoordinatorError):
                line.call("GET", "/")
            assert b"coordinator.example" in asked.result(20)
    with server(lambda request, _: reply(request, 200)) as url:
        assert line_to(url)[0].call("GET", "/").status == 200


def test_a_client_certificate_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match="`client_cert`"):
        HttpClient("https://127.0.0.1", None, certificate=tmp_path / "mine.pem", key=tmp_path / "mine.pem")
