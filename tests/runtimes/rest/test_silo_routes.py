"""The next task comes along with the answer to the one before, to a silo that says it can wait."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from fedilc.runtimes.remote.open_request import OpenRequest
from fedilc.runtimes.remote.wire import MEDIA_TYPE
from fedilc.runtimes.rest.membership import STRIKES
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


def joined_queue() -> TaskQueue:
    queue = queue_of()
    for name in queue.silos:
        queue.join(name, 10)
    return queue


def put_and_wait(
    threads: ThreadPoolExecutor, client: httpx.Client, open_request: OpenRequest, have: str = ""
) -> Future[httpx.Response]:
    """Bring an answer in the background, and wait there for what comes along."""
    params = {"task": open_request.name, "have": have, "wait": 30}
    return threads.submit(
        put, client, open_request, "a", good_body(open_request, "a"), params=params, timeout=60
    )


def test_the_next_task_comes_along_with_weights_only_where_the_silo_lacks_them() -> None:
    queue = joined_queue()
    with served(queue) as client, ThreadPoolExecutor(2) as threads:
        for has_them in (True, False):
            first = post(queue, "statistics")
            waiting = put_and_wait(threads, client, first, first.weights_digest if has_them else "")
            assert eventually(lambda: queue.silos["a"].state == "answered")
            assert not waiting.done()
            queue.close(())
            second = post(queue, "matched-update")
            response = waiting.result(30)
            assert response.headers["content-type"] == MEDIA_TYPE
            assert response.content == second.body(second.weights_digest if has_them else "")
            queue.close(())


def test_where_no_task_comes_in_time_the_answer_is_taken_all_the_same() -> None:
    queue = joined_queue()
    with served(queue) as client:
        open_request = post(queue)
        params = {"task": open_request.name, "wait": 0.2}
        response = put(client, open_request, "a", good_body(open_request, "a"), params=params)
        assert response.json() == {"taken": True}
        assert queue.take_reply(1) is not None


def test_a_silo_that_waits_is_told_that_the_run_is_over() -> None:
    queue = joined_queue()
    with served(queue) as client, ThreadPoolExecutor(1) as threads:
        waiting = put_and_wait(threads, client, post(queue))
        assert eventually(lambda: queue.silos["a"].state == "answered")
        queue.finish("complete")
        response = waiting.result(30)
        assert response.status_code == 410
        assert "complete" in detail(response)
        assert "a" in queue.informed


def test_a_silo_that_is_set_aside_while_it_waits_is_told_so() -> None:
    queue = joined_queue()
    with served(queue) as client, ThreadPoolExecutor(1) as threads:
        waiting = put_and_wait(threads, client, post(queue))
        assert eventually(lambda: queue.silos["a"].state == "answered")
        for _ in range(STRIKES):
            queue.strike("a", "its body is nonsense")
        assert waiting.result(30).status_code == 403


def test_a_line_cut_while_the_silo_waits_loses_neither_its_answer_nor_the_next_task() -> None:
    queue = joined_queue()
    with served(queue) as client:
        first = post(queue, "statistics")
        body = good_body(first, "a")
        head = head_of_put(first, "a", f"Content-Length: {len(body)}").replace(b" HTTP", b"&wait=30 HTTP", 1)
        with raw_connection(client) as raw:
            raw.sendall(head + body)
            assert eventually(lambda: queue.silos["a"].state == "answered")
        again = put(client, first, "a", body)
        assert again.json() == {"taken": True}
        assert queue.take_reply(1) is not None
        assert queue.take_reply(0.1) is None
        queue.close(())
        second = post(queue, "matched-update")
        assert put(client, first, "a", body).status_code == 409
        assert client.get("/v1/silos/a/task").content == second.body("")


def test_a_silo_that_waits_with_its_answer_does_not_keep_that_in_memory() -> None:
    queue = queue_of(remote(hidden=[300], inputs=300))
    for name in queue.silos:
        queue.join(name, 10)
    with served(queue) as client, ThreadPoolExecutor(1) as threads:
        open_request = post(queue)
        body = good_body(open_request, "a")
        tracemalloc.start()
        try:
            params = {"task": open_request.name, "wait": 30}
            waiting = threads.submit(put, client, open_request, "a", body, params=params, timeout=60)
            reply = queue.take_reply(20)
            assert reply is not None
            del reply
            assert eventually(lambda: tracemalloc.get_traced_memory()[0] < len(body) // 2)
            assert not waiting.done()
        finally:
            tracemalloc.stop()
        queue.finish("complete")
        assert waiting.result(30).status_code == 410


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "x"])
def test_a_wait_beyond_the_limits_is_refused_before_the_answer_is_taken(wait: str) -> None:
    queue = joined_queue()
    with served(queue) as client:
        open_request = post(queue)
        params = {"task": open_request.name, "wait": wait}
        response = put(client, open_request, "a", good_body(open_request, "a"), params=params)
        assert response.status_code == 422
        assert queue.take_reply(0.1) is None
