"""What viewers and monitors see: readiness, and events while their token is valid."""

from __future__ import annotations

import asyncio

import pytest

from fedilc.runtimes.rest.monitoring import EventStreams
from rest import queue_of, served


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
