"""Answers that wait for their turn take a bounded part of the memory, and are the same from the disk."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from pathlib import Path

import pytest
import torch

from fedilc.federation import Reply
from fedilc.runtimes.rest.coordinator import RestRuntime
from fedilc.runtimes.rest.task_queue import Body, Spool
from rest import good_body, good_reply, in_background, put, queue_of, remote, request_for, served

SILOS = tuple(f"silo-{number}" for number in range(24))


def test_a_body_goes_to_the_disk_when_there_is_no_room_for_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=100)
    small, large = Body(spool), Body(spool)
    small.write(b"a" * 60)
    for part in (b"b" * 30, b"c" * 30, b"d" * 1000):
        large.write(part)
    assert (small.on_disk, large.on_disk) == (False, True)
    assert spool.held == 60
    assert large.content() == b"b" * 30 + b"c" * 30 + b"d" * 1000
    assert small.content() == b"a" * 60
    assert list(tmp_path.iterdir()) == []
    del small
    gc.collect()
    assert spool.held == 0


def test_the_disk_being_full_is_a_503_that_the_silo_waits_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    queue = queue_of()
    queue.spool = Spool(None, max_bytes=10)
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    other = Body(queue.spool)
    other.write(b"x" * 20)
    with served(queue) as client:
        queue.open(open_request := RestRuntime(queue, 2, 600).opener.open(request_for(queue)))
        answer = put(client, open_request, "a", good_body(open_request, "a"))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert queue.silos["a"].strikes == 0


def test_one_answer_at_a_time_always_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    spool = Spool(None, max_bytes=10)
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    first, second = Body(spool), Body(spool)
    for part in (b"x" * 20, b"y" * 20):
        first.write(part)
    with pytest.raises(OSError, match="No space"):
        second.write(b"z" * 20)
    assert first.content() == b"x" * 20 + b"y" * 20
    first.forget()
    third = Body(spool)
    third.write(b"z" * 20)
    assert third.content() == b"z" * 20


@pytest.mark.parametrize("order", ["first last", "last first"])
def test_no_answer_waits_for_another_and_memory_does_not_depend_on_the_order(
    order: str, tmp_path: Path
) -> None:
    """24 answers of 2.4 MB come one after another, and each is handed on before the next."""
    queue = queue_of(remote(SILOS, inputs=500, hidden=[600]))
    queue.spool = Spool(tmp_path, max_bytes=4 << 20)
    runtime, request = RestRuntime(queue, len(SILOS), 600), request_for(queue)
    found: dict[str, Reply] = {}
    sizes = [0]

    def collect() -> None:
        for reply in runtime.ask(request):
            expected = good_reply(request, queue.manifest, reply.silo)
            for kind, tensors in expected.tensors.items():
                assert all(torch.equal(tensor, reply.tensors[kind][name]) for name, tensor in tensors.items())
            found[reply.silo] = Reply(reply.silo, reply.step, reply.round)

    names = SILOS if order == "last first" else (*SILOS[1:], SILOS[0])
    with served(queue) as client, in_background(collect) as collecting:
        while queue.open_request is None:
            threading.Event().wait(0.01)
        open_request = queue.open_request
        body = good_body(open_request, SILOS[1])
        assert len(body) > 2_400_000
        del body
        tracemalloc.start()
        try:
            for name in names:
                assert put(client, open_request, name, good_body(open_request, name)).status_code == 200
                while name not in found:
                    threading.Event().wait(0.01)
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        collecting.join(60)
    assert tuple(found) == names
    assert queue.spool.held == 0
    assert max(sizes) < 24 << 20
