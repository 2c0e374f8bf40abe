"""How requests themselves are limited: bodies, lines, waits and joinings, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fastapi import HTTPException
from pydantic import BaseModel

from fedilc.runtimes.remote.wire import content_digest
from fedilc.runtimes.rest import request_limits
from fedilc.runtimes.rest.request_limits import RequestLimits, read_json, refusals
from fedilc.runtimes.rest.task_queue import TaskQueue
from rest import (
    detail,
    eventually,
    good_body,
    head_of_put,
    post,
    put,
    queue_of,
    raw_connection,
    remote,
    served,
)


def test_a_body_that_says_it_is_larger_than_any_answer_is_413() -> None:
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue)
        response = put(client, open_request, "a", b"x" * (open_request.max_bytes + 1))
        assert response.status_code == 413
        assert str(open_request.max_bytes) in detail(response)
        assert queue.silos["a"].strikes == 0


def test_a_body_that_grows_beyond_any_answer_is_413_and_its_line_is_cut() -> None:
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue)
        with raw_connection(client) as raw:
            raw.sendall(head_of_put(open_request, "a", "Transfer-Encoding: chunked"))
            sent = 0
            with contextlib.suppress(ConnectionError):  # the line may be cut in the middle of a chunk
                while not select.select([raw], [], [], 0)[0]:
                    raw.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                    sent += 65_536
                    assert sent < open_request.max_bytes + (64 << 20)
            assert raw.recv(4096).split()[1] == b"413"


def test_the_size_of_an_answer_is_that_of_its_step() -> None:
    queue = queue_of(remote(hidden=[300], inputs=300))
    small = post(queue, "statistics").max_bytes
    large = post(queue, "matched-update").max_bytes
    parameters = sum(like.numel() for like in queue.manifest.like.values())
    assert large - small > 2 * 4 * parameters - 4000


@pytest.mark.parametrize("length", ["-5", "x", "9" * 5000, "1e3"])
def test_a_length_that_is_none_is_refused(length: str) -> None:
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue)
        with raw_connection(client) as raw:
            raw.sendall(head_of_put(open_request, "a", f"Content-Length: {length}"))
            status = int(raw.recv(4096).split()[1])
        assert 400 <= status < 500


def test_a_body_that_its_digest_does_not_tell_of_was_damaged_on_its_way_and_is_no_strike() -> None:
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue)
        good = good_body(open_request, "a")
        headers = {"Content-Digest": content_digest(good)}
        damaged = good[:-1] + bytes([good[-1] ^ 1])
        assert put(client, open_request, "a", damaged, headers=headers).status_code == 400
        assert queue.silos["a"].strikes == 0
        assert put(client, open_request, "a", good, headers=headers).status_code == 200


def test_a_body_that_is_encoded_is_refused_without_being_read() -> None:
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue)
        response = put(
            client, open_request, "a", good_body(open_request, "a"), headers={"Content-Encoding": "gzip"}
        )
        assert response.status_code == 415
        assert queue.silos["a"].strikes == 0


def test_a_body_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "READ_TIMEOUT_SECONDS", 0.2)
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue)
        with raw_connection(client) as raw:
            raw.sendall(head_of_put(open_request, "a", "Content-Length: 500") + b"half")
            assert raw.recv(4096).split()[1] == b"408"


def test_only_so_many_requests_of_a_silo_are_open_at_a_time() -> None:
    queue = queue_of()
    with served(queue) as client:
        raws = []
        try:
            for _ in range(request_limits.MAX_CONCURRENT):
                raw = raw_connection(client)
                raw.sendall(b"GET /v1/silos/a/task?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                raws.append(raw)
            assert eventually(lambda: client.get("/v1/silos/a/task").status_code == 429)
            assert client.get("/v1/silos/b/task").status_code == 204
        finally:
            for raw in raws:
                raw.close()
        queue.finish("complete")
        assert eventually(lambda: client.get("/v1/silos/a/task").status_code == 410)


def test_a_silo_that_hung_up_is_not_taken_for_one_that_is_back() -> None:
    """Its long poll would otherwise wake with the next task and bring a lost silo back to life."""
    queue = queue_of()
    with served(queue) as client:
        raw = raw_connection(client)
        raw.sendall(b"GET /v1/silos/a/task?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert eventually(lambda: queue.silos["a"].last_seen is not None)
        raw.close()
        time.sleep(0.3)
        seen = queue.silos["a"].last_seen
        post(queue)
        queue.close(("a",))
        time.sleep(0.5)
        assert queue.silos["a"].state == "lost"
        assert queue.silos["a"].last_seen == seen


@pytest.mark.parametrize(
    "query",
    ["wait=-1", "wait=61", "wait=nan", "wait=inf", "wait=x", "wait=1e400", "have=" + "x" * 65],
)
def test_waits_and_names_beyond_the_limits_are_422_in_one_sentence(query: str) -> None:
    with served(queue_of()) as client:
        response = client.get(f"/v1/silos/a/task?{query}")
        assert response.status_code == 422
        assert len(detail(response)) < 310


JOINING: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe",
    "NaN": b'{"manifest": "' + b"x" * 64 + b'", "examples": NaN}',
    "no hash": b'{"manifest": "x", "examples": 3}',
    "no examples": b'{"manifest": "' + b"x" * 64 + b'", "examples": 0}',
    "too many examples": b'{"manifest": "' + b"x" * 64 + b'", "examples": ' + b"9" * 300 + b"}",
    "more": b'{"manifest": "' + b"x" * 64 + b'", "examples": 3, "more": 1}',
    "deep nesting": b"[" * 2000 + b"]" * 2000,
}


@pytest.mark.parametrize("what", JOINING)
def test_a_joining_that_is_none_is_422(what: str) -> None:
    with served(queue_of()) as client:
        response = client.post("/v1/silos/a/join", content=JOINING[what])
        assert response.status_code == 422
        assert len(detail(response)) < 310


def test_a_joining_larger_than_it_can_be_is_413() -> None:
    with served(queue_of()) as client:
        assert client.post("/v1/silos/a/join", content=b" " * 10_000).status_code == 413


def test_to_join_another_run_is_a_conflict() -> None:
    with served(queue_of()) as client:
        response = client.post("/v1/silos/a/join", json={"manifest": "x" * 64, "examples": 3})
        assert response.status_code == 409


def test_who_is_no_silo_of_the_run_is_404_and_who_has_not_joined_409() -> None:
    queue = queue_of()
    queue.silos["a"].state = "not joined"
    with served(queue) as client:
        assert client.get("/v1/silos/stranger/task").status_code == 404
        assert client.get("/v1/silos/a/task").status_code == 409


def poll(client: httpx.Client, queue: TaskQueue) -> httpx.Response:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.get, "/v1/silos/a/task", params={"wait": 30})
        time.sleep(0.2)
        post(queue)
        return waiting.result(20)


def test_a_long_poll_is_answered_when_a_task_comes_up() -> None:
    queue = queue_of()
    with served(queue) as client:
        response = poll(client, queue)
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/vnd.safetensors"
        assert "content-encoding" not in response.headers
        assert queue.silos["a"].bytes_sent == len(response.content)


class Body(BaseModel):
    examples: int


@pytest.mark.parametrize("body", [b"", b"[]", b'{"examples": "secret"}', b"{" * 10_000, b"\xff"])
def test_a_body_that_is_not_valid_is_422_and_not_repeated(body: bytes) -> None:
    assert read_json(Body, b'{"examples": 3}').examples == 3
    with pytest.raises(HTTPException) as refused:
        read_json(Body, body)
    assert refused.value.status_code == 422
    assert len(refused.value.detail) <= 300
    assert "secret" not in refused.value.detail


def test_every_route_documents_that_a_request_may_not_be_valid() -> None:
    assert set(refusals(404)) == {400, 404, 422}


def test_only_so_many_large_bodies_are_read_at_once_and_slow_ones_hold_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_limits, "SLOT_SECONDS", 0.2)
    monkeypatch.setattr(request_limits, "CONCURRENT_UPLOADS", 3)
    queue = queue_of()

    async def read_all() -> tuple[int, float]:
        limits, reading, most = RequestLimits(queue), 0, list[int]()

        async def read(seconds: float) -> None:
            nonlocal reading
            async with limits.upload_slot():
                reading += 1
                most.append(reading)
                await asyncio.sleep(seconds)
                reading -= 1

        await asyncio.gather(*(read(0.005) for _ in range(12)))
        quick = max(most)
        slow = [asyncio.ensure_future(read(60)) for _ in range(3)]
        await asyncio.sleep(0)
        began = time.monotonic()
        await asyncio.gather(*(read(0.0) for _ in range(12)))
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        return quick, time.monotonic() - began

    quick, waited = asyncio.run(read_all())
    assert quick == 3
    assert 0.1 < waited < 10


@pytest.mark.parametrize(("algorithm", "vectors"), [("fedsgd", 1), ("fishr-inter-geo", 2)])
def test_how_many_answers_are_decoded_at_once_depends_on_how_large_they_are(
    algorithm: str, vectors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(remote(algorithm=algorithm))
    parameters = sum(like.numel() for like in queue.manifest.like.values())
    monkeypatch.setattr(request_limits, "DECODED_BYTES", 20 * 4 * parameters)
    assert RequestLimits(queue).decoding._value == 20 // vectors
