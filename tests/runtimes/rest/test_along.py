"""The next task comes along with the answer to the one before, to a silo that says it can wait."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from fedilc.runtimes.remote.open_request import Posted
from fedilc.runtimes.remote.wire import MEDIA_TYPE
from fedilc.runtimes.rest.task_queue import STRIKES, Board
from rest import board_of, detail, eventually, good_body, head_of_put, post, put, raw_line, remote, served


def joined_board() -> Board:
    board = board_of()
    for name in board.silos:
        board.join(name, 10)
    return board


def put_and_wait(
    threads: ThreadPoolExecutor, client: httpx.Client, posted: Posted, have: str = ""
) -> Future[httpx.Response]:
    """Bring an answer in the background, and wait there for what comes along."""
    params = {"task": posted.name, "have": have, "wait": 30}
    return threads.submit(put, client, posted, "a", good_body(posted, "a"), params=params, timeout=60)


def test_the_next_task_comes_along_with_weights_only_where_the_silo_lacks_them() -> None:
    board = joined_board()
    with served(board) as client, ThreadPoolExecutor(2) as threads:
        for has_them in (True, False):
            first = post(board, "statistics")
            waiting = put_and_wait(threads, client, first, first.weights if has_them else "")
            assert eventually(lambda: board.silos["a"].state == "answered")
            assert not waiting.done()
            board.close(())
            second = post(board, "matched-update")
            response = waiting.result(30)
            assert response.headers["content-type"] == MEDIA_TYPE
            assert response.content == second.body(second.weights if has_them else "")
            board.close(())


def test_where_no_task_comes_in_time_the_answer_is_taken_all_the_same() -> None:
    board = joined_board()
    with served(board) as client:
        posted = post(board)
        params = {"task": posted.name, "wait": 0.2}
        response = put(client, posted, "a", good_body(posted, "a"), params=params)
        assert response.json() == {"taken": True}
        assert board.take(1) is not None


def test_a_silo_that_waits_is_told_that_the_run_is_over() -> None:
    board = joined_board()
    with served(board) as client, ThreadPoolExecutor(1) as threads:
        waiting = put_and_wait(threads, client, post(board))
        assert eventually(lambda: board.silos["a"].state == "answered")
        board.finish("complete")
        response = waiting.result(30)
        assert response.status_code == 410
        assert "complete" in detail(response)
        assert "a" in board.told


def test_a_silo_that_is_set_aside_while_it_waits_is_told_so() -> None:
    board = joined_board()
    with served(board) as client, ThreadPoolExecutor(1) as threads:
        waiting = put_and_wait(threads, client, post(board))
        assert eventually(lambda: board.silos["a"].state == "answered")
        for _ in range(STRIKES):
            board._strike("a", "its body is nonsense")
        assert waiting.result(30).status_code == 403


def test_a_line_cut_while_the_silo_waits_loses_neither_its_answer_nor_the_next_task() -> None:
    board = joined_board()
    with served(board) as client:
        first = post(board, "statistics")
        body = good_body(first, "a")
        head = head_of_put(first, "a", f"Content-Length: {len(body)}").replace(b" HTTP", b"&wait=30 HTTP", 1)
        with raw_line(client) as raw:
            raw.sendall(head + body)
            assert eventually(lambda: board.silos["a"].state == "answered")
        again = put(client, first, "a", body)
        assert again.json() == {"taken": True}
        assert board.take(1) is not None
        assert board.take(0.1) is None
        board.close(())
        second = post(board, "matched-update")
        assert put(client, first, "a", body).status_code == 409
        assert client.get("/v1/silos/a/task").content == second.body("")


def test_a_silo_that_waits_with_its_answer_does_not_keep_that_in_memory() -> None:
    board = board_of(remote(hidden=[300], inputs=300))
    for name in board.silos:
        board.join(name, 10)
    with served(board) as client, ThreadPoolExecutor(1) as threads:
        posted = post(board)
        body = good_body(posted, "a")
        tracemalloc.start()
        try:
            params = {"task": posted.name, "wait": 30}
            waiting = threads.submit(put, client, posted, "a", body, params=params, timeout=60)
            reply = board.take(20)
            assert reply is not None
            del reply
            assert eventually(lambda: tracemalloc.get_traced_memory()[0] < len(body) // 2)
            assert not waiting.done()
        finally:
            tracemalloc.stop()
        board.finish("complete")
        assert waiting.result(30).status_code == 410


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "x"])
def test_a_wait_beyond_the_limits_is_refused_before_the_answer_is_taken(wait: str) -> None:
    board = joined_board()
    with served(board) as client:
        posted = post(board)
        params = {"task": posted.name, "wait": wait}
        response = put(client, posted, "a", good_body(posted, "a"), params=params)
        assert response.status_code == 422
        assert board.take(0.1) is None
