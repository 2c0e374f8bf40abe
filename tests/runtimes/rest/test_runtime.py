"""Who is asked, who is waited for, and what happens to those who do not answer."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from fedilc.errors import SilosLostError
from fedilc.federation import Request
from fedilc.runtimes.remote.open_request import OpenRequest
from fedilc.runtimes.rest.coordinator import RestRuntime
from fedilc.runtimes.rest.membership import RefusedError
from fedilc.runtimes.rest.task_queue import TaskQueue
from rest import eventually, good_body, post, queue_of, remote, request_for, spooled, training_of


def fresh(silos: tuple[str, ...] = ("a", "b", "c")) -> TaskQueue:
    """A queue that nobody has joined."""
    return training_of(remote(silos))[1]


def later(seconds: float, work: object, *arguments: object) -> threading.Timer:
    timer = threading.Timer(seconds, work, arguments)
    timer.start()
    return timer


def test_all_silos_are_waited_for_when_all_are_needed() -> None:
    queue = fresh()
    queue.join("a", 10)
    queue.join("b", 10)
    timer = later(0.3, queue.join, "c", 1)
    assert RestRuntime(queue, 3, 0.05).present() == ("a", "b", "c")
    timer.join()


def test_one_that_never_joins_is_waited_for_once_and_not_in_every_round() -> None:
    queue = fresh()
    queue.join("a", 10)
    queue.join("b", 10)
    runtime = RestRuntime(queue, 2, 0.4)
    started = time.monotonic()
    assert runtime.present() == ("a", "b")
    assert time.monotonic() - started >= 0.4
    for _ in range(5):
        again = time.monotonic()
        assert runtime.present() == ("a", "b")
        assert time.monotonic() - again < 0.4


def test_silos_come_in_the_order_of_the_manifest_whenever_they_joined() -> None:
    queue = fresh()
    for name in ("c", "a", "b"):
        queue.join(name, 10)
    assert RestRuntime(queue, 3, 1).present() == ("a", "b", "c")


def test_a_lost_silo_is_not_asked_until_it_asks_again() -> None:
    queue = fresh()
    for name in queue.silos:
        queue.join(name, 10)
    post(queue)
    queue.close(("b",))
    runtime = RestRuntime(queue, 2, 1)
    assert runtime.present() == ("a", "c")
    queue.mark_present("b")
    assert runtime.present() == ("a", "b", "c")


def set_aside(queue: TaskQueue, name: str) -> None:
    open_request = post(queue)
    for _ in range(3):
        with pytest.raises(RefusedError):
            queue.accept(name, 1, "matched-update", open_request.name, spooled(b"nonsense"))
    queue.close(())


def test_a_silo_left_out_is_told_so_and_not_waited_for() -> None:
    queue = queue_of(remote(("a", "b", "c")))
    runtime = RestRuntime(queue, 3, 1)
    runtime.set_aside({"b": "its gradient is long"})
    assert runtime.present() == ("a", "c")
    for ask in (partial(queue.task_for, "b"), partial(queue.join, "b", 10)):
        with pytest.raises(RefusedError, match="its gradient is long") as refused:
            ask()
        assert refused.value.status == 403


def test_a_silo_set_aside_is_never_asked_again() -> None:
    queue = fresh()
    for name in queue.silos:
        queue.join(name, 10)
    set_aside(queue, "b")
    assert RestRuntime(queue, 2, 1).present() == ("a", "c")
    with pytest.raises(RefusedError, match="'b' was set aside"):
        queue.join("b", 10)
    assert queue.silos["b"].state == "set aside"


def test_fewer_than_needed_after_some_were_set_aside_is_an_end_in_one_sentence() -> None:
    queue = fresh()
    for name in queue.silos:
        queue.join(name, 10)
    set_aside(queue, "b")
    with pytest.raises(SilosLostError, match=r"b was set aside.*min_silos=3"):
        RestRuntime(queue, 3, 1).present()


def answer(queue: TaskQueue, name: str, request: Request) -> None:
    while queue.task_for(name) is None:
        time.sleep(0.01)
    open_request = OpenRequest(request, queue.manifest)
    body = spooled(good_body(open_request, name))
    queue.accept(name, request.round, request.step, open_request.name, body)


def asking(
    queue: TaskQueue, needed: int, timeout: float, answers: tuple[str, ...]
) -> tuple[list[str], float]:
    """Who has answered a request when it was taken down, and after how long."""
    request = request_for(queue)
    runtime = RestRuntime(queue, needed, timeout)
    started, replies = time.monotonic(), runtime.ask(request)
    timers = [later(0.05, answer, queue, name, request) for name in answers]
    found = [reply.silo for reply in replies]
    for timer in timers:
        timer.join()
    return found, time.monotonic() - started


def test_a_round_ends_as_soon_as_everybody_has_answered() -> None:
    found, seconds = asking(queue_of(remote(["a", "b", "c"])), 3, 100, ("c", "a", "b"))
    assert sorted(found) == ["a", "b", "c"]
    assert seconds < 50


def test_after_the_timeout_a_round_goes_on_with_enough() -> None:
    queue = queue_of(remote(["a", "b", "c"]))
    found, seconds = asking(queue, 2, 1.0, ("c", "a"))
    assert sorted(found) == ["a", "c"]
    assert seconds >= 1.0
    assert queue.silos["b"].state == "lost"


def test_with_too_few_a_round_waits_beyond_the_timeout() -> None:
    queue = queue_of(remote(["a", "b", "c"]))
    request = request_for(queue)
    replies = RestRuntime(queue, 3, 0.1).ask(request)
    waits = {"a": 0.05, "b": 0.1, "c": 1.5}
    timers = [later(wait, answer, queue, name, request) for name, wait in waits.items()]
    assert sorted(reply.silo for reply in replies) == ["a", "b", "c"]
    for timer in timers:
        timer.join()


def phase_of(queue: TaskQueue) -> object:
    return queue.snapshot()["phase"]


def test_a_round_that_too_few_answer_says_that_it_waits_for_silos_until_they_are_back() -> None:
    queue = queue_of(remote(["a", "b"]))
    request = request_for(queue)
    found: list[str] = []
    asks = threading.Thread(
        target=lambda: found.extend(reply.silo for reply in RestRuntime(queue, 2, 0.1).ask(request))
    )
    asks.start()
    answer(queue, "a", request)
    assert phase_of(queue) == "matched-update"
    assert eventually(lambda: phase_of(queue) == "waiting for silos")
    assert queue.silos["b"].state == "lost"
    assert queue.snapshot()["seconds_left"] is None
    queue.mark_present("b")
    assert queue.task_for("b") is not None
    assert phase_of(queue) == "matched-update"
    answer(queue, "b", request)
    asks.join()
    assert sorted(found) == ["a", "b"]
    assert (queue.silos["b"].state, queue.silos["b"].reason) == ("answered", None)


def test_a_run_says_that_it_waits_for_silos_when_too_few_are_there_for_the_next_round() -> None:
    queue = queue_of(remote(["a", "b"]))
    post(queue)
    queue.close(("b",))
    asks = threading.Thread(target=RestRuntime(queue, 2, 0.1).present)
    asks.start()
    assert eventually(lambda: phase_of(queue) == "waiting for silos")
    queue.mark_present("b")
    asks.join()
    post(queue)
    assert phase_of(queue) == "matched-update"


def test_a_silo_set_aside_in_the_middle_of_a_round_does_not_hold_it_up() -> None:
    queue = queue_of(remote(["a", "b", "c"]))
    request = request_for(queue)
    replies = RestRuntime(queue, 2, 100).ask(request)

    def misbehave() -> None:
        while queue.task_for("b") is None:
            time.sleep(0.01)
        open_request = OpenRequest(request, queue.manifest)
        for _ in range(3):
            with pytest.raises(RefusedError):
                queue.accept("b", 1, "matched-update", open_request.name, spooled(b"nonsense"))

    timers = [later(0.05, answer, queue, name, request) for name in "ac"] + [later(0.1, misbehave)]
    assert sorted(reply.silo for reply in replies) == ["a", "c"]
    for timer in timers:
        timer.join()


def test_a_silos_loss_is_seen_as_soon_as_its_gradient_has_come() -> None:
    queue = fresh()
    queue.join("a", 10)
    open_request = post(queue)
    assert queue.silos["a"].loss is None
    queue.accept("a", 1, "matched-update", open_request.name, spooled(good_body(open_request, "a")))
    reply = open_request.read(good_body(open_request, "a"), "a")
    assert queue.silos["a"].loss == reply.numbers["loss"]
