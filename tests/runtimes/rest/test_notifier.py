"""A coordinator that stops lets go of those who wait, at once and without a word on stderr."""

from __future__ import annotations

import ssl
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from certificates import make_certificates

from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.coordinator import listening, make_app
from rest import queue_of, served


def watch(url: str, open_: threading.Event) -> list[str]:
    with httpx.stream("GET", f"{url}/v1/events", timeout=30, trust_env=False) as events:
        lines = events.iter_lines()
        found = [next(lines)]
        open_.set()
        return found + list(lines)


@pytest.mark.parametrize("over", [False, True])
def test_viewers_and_silos_that_wait_are_let_go_when_the_coordinator_stops(
    over: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    queue = queue_of()
    watching = [threading.Event() for _ in range(3)]
    with ThreadPoolExecutor(4) as threads:
        with served(queue) as client:
            url = str(client.base_url)
            viewers: list[Future[list[str]]] = [threads.submit(watch, url, open_) for open_ in watching]
            silo = threads.submit(httpx.get, f"{url}/v1/silos/a/task?wait=30", timeout=60, trust_env=False)
            assert all(open_.wait(20) for open_ in watching)
            while queue.silos["a"].last_seen is None:
                time.sleep(0.01)
            if over:
                queue.finish("complete")
        assert all(viewer.result(20)[0] == "event: status" for viewer in viewers)
        assert silo.result(20).status_code == (410 if over else 204)
    assert capfd.readouterr().err == ""


def test_a_line_that_stands_idle_over_tls_is_closed_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A silo that computes reads nothing meanwhile, also not that the other side says goodbye."""
    tls = make_certificates(tmp_path)
    address = Address(port=0, certificate=tls.certificate, key=tls.key)
    context = ssl.create_default_context(cafile=tls.authority)
    app = make_app(queue_of(), None)
    with httpx.Client(verify=context, trust_env=False) as client, listening(app, address) as port:
        assert client.get(f"https://127.0.0.1:{port}/v1/health").status_code == 200
    assert capfd.readouterr().err == ""
