"""What viewers and monitors see: readiness, the history in pages, and events while their token is valid."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from fleets import PATIENCE

from fedilc.runtimes.rest.auth import Tokens, add_token
from fedilc.runtimes.rest.monitoring import PAGE_BYTES, EventStreams, HistoryText
from fedilc.runtimes.rest.task_queue import TaskQueue
from rest import bearer, eventually, queue_of, served


def test_a_coordinator_is_ready_until_its_run_is_over() -> None:
    queue = queue_of()
    with served(queue) as client:
        assert client.get("/v1/ready").status_code == 200
        queue.finish("complete")
        assert client.get("/v1/ready").status_code == 503
        assert client.get("/v1/health").status_code == 200


def test_a_viewer_whose_token_is_revoked_sees_no_further_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedilc.runtimes.rest.monitoring.KEEP_ALIVE_SECONDS", 0.01)

    async def watched() -> list[str]:
        leave = iter([True, True, False])
        return [event async for event in EventStreams(queue_of()).events(0, lambda: next(leave))]

    assert len(asyncio.run(asyncio.wait_for(watched(), 60))) == 2


def long_run(rounds: int, bytes_per_round: int) -> TaskQueue:
    queue = queue_of()
    queue.history.extend({"round": number, "text": "x" * bytes_per_round} for number in range(1, rounds + 1))
    return queue


def test_pages_of_the_history_have_each_record_once_and_lead_to_the_next() -> None:
    queue = long_run(300, 10_000)
    with served(queue) as client:
        address, found, pages = "/v1/history", [], 0
        while address:
            page = client.get(address)
            assert len(page.content) < PAGE_BYTES + 11_000
            found += page.json()
            address, pages = page.links.get("next", {}).get("url"), pages + 1
        assert found == queue.history
        assert pages == 3
        assert client.get("/v1/history?after=299").json() == queue.history[-1:]
        assert client.get("/v1/history?after=300").json() == []


def test_a_record_is_serialised_once_however_many_viewers_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, dumps = list[object](), json.dumps
    queue = long_run(5, 10)

    def counted(value: object, **options: object) -> str:
        texts.extend([value] if value in queue.history else [])
        return dumps(value, **options)

    monkeypatch.setattr("fedilc.runtimes.rest.monitoring.json.dumps", counted)
    history = HistoryText(queue)
    for _ in range(3):
        assert json.loads(history.page(0)[0]) == queue.history
    assert texts == queue.history


def unread(client: httpx.Client, token: str, path: str = "/v1/history") -> socket.socket:
    """A connection that asks and reads nothing, with the smallest buffer there is."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    line.settimeout(PATIENCE)
    line.connect((client.base_url.host, client.base_url.port))
    line.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    return line


def tokens_of(tmp_path: Path, *viewers: str) -> tuple[Tokens, list[str]]:
    made = [add_token(tmp_path / "tokens.json", name, "viewers") for name in viewers]
    return Tokens.read(tmp_path / "tokens.json"), made


def test_a_viewer_downloads_two_at_a_time_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are larger here than what the system's own buffers take, so that downloads stay open."""
    monkeypatch.setattr("fedilc.runtimes.rest.monitoring.PAGE_BYTES", 12 << 20)
    tokens, (anna, ben) = tokens_of(tmp_path, "anna", "ben")
    with served(long_run(400, 30_000), tokens) as client, ExitStack() as stack:

        def status(token: str) -> int:
            return client.get("/v1/history", headers=bearer(token)).status_code

        lines = [stack.enter_context(unread(client, anna)) for _ in range(2)]
        assert eventually(lambda: status(anna) == 429)
        assert status(ben) == 200
        for line in lines:
            line.close()
        assert eventually(lambda: status(anna) == 200)


def test_many_unread_downloads_cost_neither_memory_nor_time(tmp_path: Path) -> None:
    tokens, (anna,) = tokens_of(tmp_path, "anna")
    with served(long_run(400, 30_000), tokens) as client, ExitStack() as stack:
        assert client.get("/v1/history", headers=bearer(anna)).status_code == 200
        before = _memory()
        for _ in range(120):
            stack.enter_context(unread(client, anna))
        end = time.monotonic() + 2
        while time.monotonic() < end:
            asked = time.monotonic()
            assert client.get("/v1/health").status_code == 200
            assert time.monotonic() - asked < 2
            assert _memory() - before < 40 << 20


def test_a_download_that_nobody_reads_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedilc.runtimes.rest.monitoring.DOWNLOAD_SECONDS", 0.5)
    monkeypatch.setattr("fedilc.runtimes.rest.monitoring.PAGE_BYTES", 12 << 20)
    tokens, (anna,) = tokens_of(tmp_path, "anna")
    with served(long_run(400, 30_000), tokens) as client, ExitStack() as stack:
        lines = [stack.enter_context(unread(client, anna)) for _ in range(2)]
        assert eventually(
            lambda: client.get("/v1/history?after=400", headers=bearer(anna)).status_code == 200
        )
        for line in lines:
            with contextlib.suppress(ConnectionError):
                while line.recv(1 << 20):
                    pass


def _memory() -> int:
    """The bytes that this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
