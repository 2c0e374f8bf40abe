"""An open request: packed once, never after the server may change the weights, and read back exactly."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from fedilc.runtimes.remote.open_request import OpenRequest
from fedilc.runtimes.remote.wire import pack_reply
from fedilc.runtimes.rest.coordinator import RestRuntime
from fedilc.runtimes.rest.task_queue import TaskQueue
from rest import good_body, post, queue_of, remote, request_for, spooled


def test_weights_are_never_packed_once_the_server_may_step() -> None:
    """A request holds the live parameters; a silo that is late must not get a mix of two rounds."""
    queue = queue_of()
    request = request_for(queue)
    open_request = OpenRequest(request, queue.manifest)
    queue.open(open_request)
    before = open_request.body("")
    queue.close(())
    for tensor in request.weights.values():
        tensor.add_(1.0)
    assert before is not None
    assert open_request.body("") is None


def test_hundreds_of_silos_at_once_get_one_and_the_same_bytes() -> None:
    queue = queue_of(remote(hidden=[400], inputs=400))
    open_request = post(queue)
    bodies: list[bytes | None] = []
    threads = [threading.Thread(target=lambda: bodies.append(open_request.body(""))) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(body) for body in bodies}) == 1


def test_who_has_the_weights_does_not_get_them_again() -> None:
    queue = queue_of(remote(hidden=[100], inputs=100))
    open_request = post(queue, "statistics")
    whole, short = open_request.body(""), open_request.body(open_request.weights_digest)
    assert whole is not None
    assert short is not None
    assert len(short) < 2000 < 40_000 < len(whole)
    assert len(open_request.body("others") or b"") == len(whole)


def test_weights_of_one_version_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_of()
    runtime = RestRuntime(queue, 2, 1)
    statistics, gradients = request_for(queue, "statistics"), request_for(queue, "matched-update")
    first, second = runtime.opener.open(statistics), runtime.opener.open(gradients)
    assert first.weights_digest == second.weights_digest
    other = request_for(queue, "statistics", round_=2, fill=0.1)
    assert runtime.opener.open(other).weights_digest != first.weights_digest


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("hidden", [[], [4]])
def test_the_size_of_a_variance_is_known_beforehand(covariance: str, hidden: list[int]) -> None:
    queue = queue_of(remote(covariance=covariance, hidden=hidden))
    size = (hidden[-1] if hidden else 3) + 1
    assert queue.manifest.statistic == ([size, size] if covariance == "full" else [size])
    open_request = post(queue, "statistics")
    queue.accept("a", 1, "statistics", open_request.name, spooled(good_body(open_request, "a")))


def replies_of(queue: TaskQueue, names: str) -> Iterator[bytes]:
    open_request = post(queue)
    for name in names:
        reply = open_request.read(good_body(open_request, name), name)
        yield pack_reply(reply, queue.manifest)


def test_what_is_read_from_an_answer_packs_to_the_same_bytes() -> None:
    queue = queue_of()
    open_request = post(queue)
    assert list(replies_of(queue, "ab")) == [good_body(open_request, name) for name in "ab"]


def test_halves_widen_to_each_parameters_own_type() -> None:
    queue = queue_of(wire="float16")
    open_request = post(queue)
    reply = open_request.read(good_body(open_request, "a"), "a")
    assert {tensor.dtype for tensor in reply.tensors["gradient"].values()} == {torch.float32}
