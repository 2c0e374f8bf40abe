"""What a coordinator takes and what it refuses, over a real socket: status, reason, strikes."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch

from fedilc.federation import Reply
from fedilc.runtimes.remote.posted import Posted
from fedilc.runtimes.remote.wire import content_digest, pack_reply
from fedilc.runtimes.rest import app as app_module
from fedilc.runtimes.rest.board import Board
from rest import board_of, good_body, good_reply, post, put, remote, served


def changed(posted: Posted, **numbers: Any) -> bytes:
    """A good answer with other numbers; those that are ... are left out."""
    reply = good_reply(posted.request, posted.manifest, "a")
    reply.numbers |= numbers
    reply.numbers = {key: value for key, value in reply.numbers.items() if value is not ...}
    return as_told(reply)


def as_told(reply: Reply) -> bytes:
    """Packed as it is, with numbers that an honest silo would not send."""
    honest = pack_reply(Reply(reply.silo, reply.phase, reply.round, reply.tensors), "exact")
    size = int.from_bytes(honest[:8], "little")
    header = json.loads(honest[8 : 8 + size])
    header["__metadata__"]["fedilc"] = json.dumps({"numbers": reply.numbers, "scales": {}})
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + honest[8 + size :]


def detail(response: httpx.Response) -> str:
    found = response.json()["detail"]
    assert isinstance(found, str)
    return found


def wrong_tensors(posted: Posted) -> dict[str, Reply]:
    def reply() -> Reply:
        return good_reply(posted.request, posted.manifest, "a")

    made = {
        name: reply() for name in ("name", "shape", "dtype", "nan", "infinity", "kind", "missing", "besides")
    }
    made["name"].tensors["gradient"]["stranger"] = made["name"].tensors["gradient"].pop("1.weight")
    made["shape"].tensors["gradient"]["1.weight"] = torch.zeros(3, 4)
    made["dtype"].tensors["gradient"]["1.weight"] = torch.zeros(4, 3).double()
    made["nan"].tensors["gradient"]["1.weight"][1, 1] = float("nan")
    made["infinity"].tensors["penalty"]["3.bias"][0] = float("inf")
    made["kind"].tensors["statistics"] = made["kind"].tensors.pop("penalty")
    del made["missing"].tensors["gradient"]["1.bias"]
    made["besides"].tensors["gradient"]["more"] = torch.zeros(1)
    return made


@pytest.mark.parametrize("what", ["name", "shape", "dtype", "nan", "infinity", "kind", "missing", "besides"])
def test_tensors_that_were_not_asked_for_are_refused_with_a_reason_and_a_strike(what: str) -> None:
    board = board_of()
    with served(board) as client:
        posted = post(board)
        response = put(client, posted, "a", as_told(wrong_tensors(posted)[what]))
        assert response.status_code == 422
        assert "1 of 3" in detail(response)
        assert board.silos["a"].strikes == 1
        assert board.silos["b"].strikes == 0
        assert put(client, posted, "a", good_body(posted, "a")).status_code == 200


NUMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    "no loss": ("gradients", {"loss": ...}),
    "no examples": ("gradients", {"examples": ...}),
    "no distance": ("gradients", {"distance": ...}),
    "a loss of none": ("gradients", {"loss": None}),
    "a loss of text": ("gradients", {"loss": "0.5"}),
    "a loss that is too large to add": ("gradients", {"loss": 1e308}),
    "a loss that is NaN": ("gradients", {"loss": float("nan")}),
    "no examples at all": ("gradients", {"examples": 0}),
    "an integer of 400 digits": ("gradients", {"examples": 10**400}),
    "a truth": ("gradients", {"examples": True}),
    "a negative distance": ("gradients", {"distance": -1.0}),
    "a number besides": ("gradients", {"secret": 1.0}),
    "numbers in statistics": ("statistics", {"loss": 1.0}),
    "no accuracy": ("evaluate", {"accuracy": ...}),
    "no auroc": ("evaluate", {"auroc": ...}),
    "an accuracy of 2": ("evaluate", {"accuracy": 2.0}),
    "an accuracy of 1e300": ("evaluate", {"accuracy": 1e300}),
    "a metric of its own": ("evaluate", {"beauty": 1.0}),
    "a sub-domain with a name of a page": ("evaluate", {"accuracy of " + "x" * 5000: 1.0}),
    "thousands of sub-domains": ("evaluate", {f"loss of {i}": 1.0 for i in range(6000)}),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_numbers_that_would_stop_the_run_are_refused(what: str) -> None:
    phase, numbers = NUMBERS[what]
    board = board_of()
    with served(board) as client:
        posted = post(board, phase)
        response = put(client, posted, "a", changed(posted, **numbers))
        assert response.status_code == 422
        assert len(detail(response)) < 400
        assert put(client, posted, "a", good_body(posted, "a")).status_code == 200


def test_metrics_by_sub_domain_and_undefined_ones_are_taken() -> None:
    board = board_of()
    with served(board) as client:
        posted = post(board, "evaluate")
        body = changed(
            posted, loss=None, **{"accuracy of -40°": 0.5, "loss of -40°": None, "examples of -40°": 3}
        )
        assert put(client, posted, "a", body).status_code == 200


def test_a_silo_without_a_validation_set_measures_nothing() -> None:
    board = board_of()
    with served(board) as client:
        posted = post(board, "evaluate")
        assert put(client, posted, "a", as_told(Reply("a", "evaluate", 1))).status_code == 200


def test_after_three_strikes_a_silo_is_set_aside_and_told_so_everywhere() -> None:
    board = board_of()
    with served(board) as client:
        posted = post(board)
        codes = [put(client, posted, "a", b"nonsense").status_code for _ in range(4)]
        assert codes == [422, 422, 422, 403]
        assert board.silos["a"].state == "set aside"
        assert client.get("/v1/silos/a/task").status_code == 403
        joining = {"manifest": board.manifest.hash, "examples": 3}
        refused = client.post("/v1/silos/a/join", json=joining)
        assert refused.status_code == 403
        assert "set aside" in detail(refused)
        assert put(client, posted, "b", good_body(posted, "b")).status_code == 200
        assert board.hopeless() is False
        assert board.take(1) is not None
        assert board.hopeless() is True


def test_the_same_answer_twice_is_taken_once_and_another_is_a_conflict() -> None:
    board = board_of()
    with served(board) as client:
        posted = post(board)
        good = good_body(posted, "a")
        assert [put(client, posted, "a", good).status_code for _ in range(3)] == [200] * 3
        assert put(client, posted, "a", changed(posted, loss=0.25)).status_code == 409
        assert board.take(1) is not None
        assert board.take(0.05) is None


def test_two_different_answers_at_the_same_time_are_one_answer_and_conflicts() -> None:
    board = board_of()
    with served(board) as client:
        posted = post(board)
        bodies = [changed(posted, loss=loss / 8) for loss in range(1, 7)]
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(lambda body: put(client, posted, "a", body).status_code, bodies))
        assert sorted(found) == [200] + [409] * 5


def test_an_answer_out_of_phase_or_round_or_to_no_task_is_a_conflict_without_a_strike() -> None:
    board = board_of()
    with served(board) as client:
        early = post(board, "gradients")
        body = good_body(early, "a")
        board.close(())
        assert put(client, early, "a", body).status_code == 409
        now = post(board, "statistics")
        assert put(client, early, "a", body).status_code == 409
        for path in ("rounds/2/statistics", "rounds/1/gradients", "rounds/1/evaluate"):
            response = client.put(f"/v1/silos/a/{path}", params={"task": now.name}, content=body)
            assert response.status_code == 409
        wrong_task = client.put("/v1/silos/a/rounds/1/statistics", params={"task": "x"}, content=body)
        assert wrong_task.status_code == 409
        assert board.silos["a"].strikes == 0


def test_a_task_is_for_those_who_were_asked() -> None:
    board = board_of(remote(["a", "b", "c"]))
    request = post(board).request
    some = Posted(
        type(request)("gradients", 1, 0, ("a", "b"), request.weights, request.variance, 1.0), board.manifest
    )
    board.post(some)
    with served(board) as client:
        assert client.get("/v1/silos/c/task").status_code == 204
        assert client.get("/v1/silos/a/task").status_code == 200
        assert put(client, some, "c", good_body(some, "c")).status_code == 409


def test_a_body_that_says_it_is_larger_than_any_answer_is_413() -> None:
    board = board_of()
    with served(board) as client:
        posted = post(board)
        response = put(client, posted, "a", b"x" * (posted.most_bytes + 1))
        assert response.status_code == 413
        assert str(posted.most_bytes) in detail(response)
        assert board.silos["a"].strikes == 0


def test_a_body_that_grows_beyond_any_answer_is_413_and_its_line_is_cut() -> None:
    board = board_of()
    with served(board) as client:
        posted = post(board)
        with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as raw:
            path = f"/v1/silos/a/rounds/1/gradients?task={posted.name}"
            raw.sendall(f"PUT {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            raw.settimeout(20)
            sent = 0
            with contextlib.suppress(ConnectionError):  # the line may be cut in the middle of a chunk
                while not select.select([raw], [], [], 0)[0]:
                    raw.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                    sent += 65_536
                    assert sent < posted.most_bytes + (64 << 20)
            assert raw.recv(4096).split()[1] == b"413"


def test_the_size_of_an_answer_is_that_of_its_phase() -> None:
    board = board_of(remote(hidden=[300], inputs=300))
    small = post(board, "statistics").most_bytes
    large = post(board, "gradients").most_bytes
    parameters = sum(like.numel() for like in board.manifest.like.values())
    assert large - small > 2 * 4 * parameters - 4000


@pytest.mark.parametrize("length", ["-5", "x", "9" * 5000, "1e3"])
def test_a_length_that_is_none_is_refused(length: str) -> None:
    board = board_of()
    with served(board) as client:
        posted = post(board)
        with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as raw:
            raw.settimeout(10)
            path = f"/v1/silos/a/rounds/1/gradients?task={posted.name}"
            raw.sendall(f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
            status = int(raw.recv(4096).split()[1])
        assert 400 <= status < 500


def test_a_body_that_its_digest_does_not_tell_of_was_damaged_on_its_way_and_is_no_strike() -> None:
    board = board_of()
    with served(board) as client:
        posted = post(board)
        good = good_body(posted, "a")
        headers = {"Content-Digest": content_digest(good)}
        damaged = good[:-1] + bytes([good[-1] ^ 1])
        assert put(client, posted, "a", damaged, headers=headers).status_code == 400
        assert board.silos["a"].strikes == 0
        assert put(client, posted, "a", good, headers=headers).status_code == 200


def test_a_body_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_SILENCE_SECONDS", 0.2)
    board = board_of()
    with served(board) as client:
        posted = post(board)
        with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as raw:
            raw.settimeout(20)
            path = f"/v1/silos/a/rounds/1/gradients?task={posted.name}"
            raw.sendall(f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\nhalf".encode())
            assert raw.recv(4096).split()[1] == b"408"


def test_only_so_many_requests_of_a_silo_are_open_at_a_time() -> None:
    board = board_of()
    with served(board) as client:
        raws = []
        try:
            for _ in range(app_module.AT_ONCE):
                raw = socket.create_connection((client.base_url.host, client.base_url.port or 0))
                raw.sendall(b"GET /v1/silos/a/task?wait=30 HTTP/1.1\r\nHost: x\r\n\r\n")
                raws.append(raw)
            assert eventually(lambda: client.get("/v1/silos/a/task").status_code == 429)
            assert client.get("/v1/silos/b/task").status_code == 204
        finally:
            for raw in raws:
                raw.close()
        board.finish("complete")
        assert eventually(lambda: client.get("/v1/silos/a/task").status_code == 410)


def eventually(is_so: Any, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_so():
            return True
        time.sleep(0.02)
    return False


def test_a_silo_that_hung_up_is_not_taken_for_one_that_is_back() -> None:
    """Its long poll would otherwise wake with the next task and bring a lost silo back to life."""
    board = board_of()
    with served(board) as client:
        raw = socket.create_connection((client.base_url.host, client.base_url.port or 0))
        raw.sendall(b"GET /v1/silos/a/task?wait=30 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert eventually(lambda: board.silos["a"].last_seen is not None)
        raw.close()
        time.sleep(0.3)
        seen = board.silos["a"].last_seen
        post(board)
        board.close(("a",))
        time.sleep(0.5)
        assert board.silos["a"].state == "lost"
        assert board.silos["a"].last_seen == seen


@pytest.mark.parametrize(
    "query",
    ["wait=-1", "wait=61", "wait=nan", "wait=inf", "wait=x", "wait=1e400", "have=" + "x" * 65],
)
def test_waits_and_names_beyond_the_limits_are_422_in_one_sentence(query: str) -> None:
    with served(board_of()) as client:
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
    with served(board_of()) as client:
        response = client.post("/v1/silos/a/join", content=JOINING[what])
        assert response.status_code == 422
        assert len(detail(response)) < 310


def test_a_joining_larger_than_it_can_be_is_413() -> None:
    with served(board_of()) as client:
        assert client.post("/v1/silos/a/join", content=b" " * 10_000).status_code == 413


def test_to_join_another_run_is_a_conflict() -> None:
    with served(board_of()) as client:
        response = client.post("/v1/silos/a/join", json={"manifest": "x" * 64, "examples": 3})
        assert response.status_code == 409


def test_who_is_no_silo_of_the_run_is_404_and_who_has_not_joined_409() -> None:
    board = board_of()
    board.silos["a"].state = "not joined"
    with served(board) as client:
        assert client.get("/v1/silos/stranger/task").status_code == 404
        assert client.get("/v1/silos/a/task").status_code == 409


def poll(client: httpx.Client, board: Board) -> httpx.Response:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.get, "/v1/silos/a/task", params={"wait": 30})
        time.sleep(0.2)
        post(board)
        return waiting.result(20)


def test_a_long_poll_is_answered_when_a_task_comes_up() -> None:
    board = board_of()
    with served(board) as client:
        response = poll(client, board)
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/vnd.safetensors"
        assert "content-encoding" not in response.headers
        assert board.silos["a"].bytes_sent == len(response.content)
