"""Who is asked, who is waited for, and what happens to those who do not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from fedilc.errors import SilosLostError
from fedilc.federation import Request
from fedilc.runtimes.remote.open_request import Posted
from fedilc.runtimes.remote.wire import pack_reply
from fedilc.runtimes.rest.runtime import RestRuntime
from fedilc.runtimes.rest.task_queue import Board
from rest import board_of, eventually, good_body, post, remote, request_for, training_of


def fresh(silos: tuple[str, ...] = ("a", "b", "c")) -> Board:
    """A board that nobody has joined."""
    return training_of(remote(silos))[1]


def later(seconds: float, work: object, *arguments: object) -> threading.Timer:
    timer = threading.Timer(seconds, work, arguments)
    timer.start()
    return timer


def test_all_silos_are_waited_for_when_all_are_needed() -> None:
    board = fresh()
    board.join("a", 10)
    board.join("b", 10)
    timer = later(0.3, board.join, "c", 1)
    assert RestRuntime(board, 3, 0.05).present() == ("a", "b", "c")
    timer.join()


def test_one_that_never_joins_is_waited_for_once_and_not_in_every_round() -> None:
    board = fresh()
    board.join("a", 10)
    board.join("b", 10)
    runtime = RestRuntime(board, 2, 0.4)
    started = time.monotonic()
    assert runtime.present() == ("a", "b")
    assert time.monotonic() - started >= 0.4
    board._patient_until = time.monotonic() - 1000
    for _ in range(5):
        assert runtime.present() == ("a", "b")


def test_silos_come_in_the_order_of_the_manifest_whenever_they_joined() -> None:
    board = fresh()
    for name in ("c", "a", "b"):
        board.join(name, 10)
    assert RestRuntime(board, 3, 1).present() == ("a", "b", "c")


def test_a_lost_silo_is_not_asked_until_it_asks_again() -> None:
    board = fresh()
    for name in board.silos:
        board.join(name, 10)
    post(board)
    board.close(("b",))
    runtime = RestRuntime(board, 2, 1)
    assert runtime.present() == ("a", "c")
    board.arrived("b")
    assert runtime.present() == ("a", "b", "c")


def set_aside(board: Board, name: str) -> None:
    posted = post(board)
    for _ in range(3):
        board.accept(name, 1, "matched-update", posted.name, b"nonsense")
    board.close(())


def test_a_silo_left_out_is_told_so_and_not_waited_for() -> None:
    board = board_of(remote(("a", "b", "c")))
    runtime = RestRuntime(board, 3, 1)
    runtime.leave_out({"b": "its gradient is long"})
    assert runtime.present() == ("a", "c")
    refusals = [board.task_for("b"), board.join("b", 10)]
    assert [refusal.status for refusal in refusals] == [403, 403]
    assert all("its gradient is long" in refusal.reason for refusal in refusals)


def test_a_silo_set_aside_is_never_asked_again() -> None:
    board = fresh()
    for name in board.silos:
        board.join(name, 10)
    set_aside(board, "b")
    assert RestRuntime(board, 2, 1).present() == ("a", "c")
    board.join("b", 10)
    assert board.silos["b"].state == "set aside"


def test_fewer_than_needed_after_some_were_set_aside_is_an_end_in_one_sentence() -> None:
    board = fresh()
    for name in board.silos:
        board.join(name, 10)
    set_aside(board, "b")
    with pytest.raises(SilosLostError, match=r"b was set aside.*min_silos=3"):
        RestRuntime(board, 3, 1).present()


def answer(board: Board, name: str, request: Request) -> None:
    while board.task_for(name) is None:
        time.sleep(0.01)
    posted = Posted(request, board.manifest)
    refusal = board.accept(name, request.round, request.step, posted.name, good_body(posted, name))
    assert refusal is None, refusal


def asking(board: Board, needed: int, timeout: float, answers: tuple[str, ...]) -> tuple[list[str], float]:
    """Who has answered a request when it was taken down, and after how long."""
    request = request_for(board)
    runtime = RestRuntime(board, needed, timeout)
    started, replies = time.monotonic(), runtime.ask(request)
    timers = [later(0.05, answer, board, name, request) for name in answers]
    found = [reply.silo for reply in replies]
    for timer in timers:
        timer.join()
    return found, time.monotonic() - started


def test_a_round_ends_as_soon_as_everybody_has_answered() -> None:
    found, seconds = asking(board_of(remote(["a", "b", "c"])), 3, 100, ("c", "a", "b"))
    assert sorted(found) == ["a", "b", "c"]
    assert seconds < 50


def test_after_the_timeout_a_round_goes_on_with_enough() -> None:
    board = board_of(remote(["a", "b", "c"]))
    found, seconds = asking(board, 2, 1.0, ("c", "a"))
    assert sorted(found) == ["a", "c"]
    assert seconds >= 1.0
    assert board.silos["b"].state == "lost"


def test_with_too_few_a_round_waits_beyond_the_timeout() -> None:
    board = board_of(remote(["a", "b", "c"]))
    request = request_for(board)
    replies = RestRuntime(board, 3, 0.1).ask(request)
    waits = {"a": 0.05, "b": 0.1, "c": 1.5}
    timers = [later(wait, answer, board, name, request) for name, wait in waits.items()]
    assert sorted(reply.silo for reply in replies) == ["a", "b", "c"]
    for timer in timers:
        timer.join()


def phase_of(board: Board) -> object:
    return board.snapshot()["phase"]


def test_a_round_that_too_few_answer_says_that_it_waits_for_silos_until_they_are_back() -> None:
    board = board_of(remote(["a", "b"]))
    request = request_for(board)
    found: list[str] = []
    asks = threading.Thread(
        target=lambda: found.extend(reply.silo for reply in RestRuntime(board, 2, 0.1).ask(request))
    )
    asks.start()
    answer(board, "a", request)
    assert phase_of(board) == "matched-update"
    assert eventually(lambda: phase_of(board) == "waiting for silos")
    assert board.silos["b"].state == "lost"
    assert board.snapshot()["seconds_left"] is None
    board.arrived("b")
    assert board.task_for("b") is not None
    assert phase_of(board) == "matched-update"
    answer(board, "b", request)
    asks.join()
    assert sorted(found) == ["a", "b"]
    assert (board.silos["b"].state, board.silos["b"].reason) == ("answered", None)


def test_a_run_says_that_it_waits_for_silos_when_too_few_are_there_for_the_next_round() -> None:
    board = board_of(remote(["a", "b"]))
    post(board)
    board.close(("b",))
    asks = threading.Thread(target=RestRuntime(board, 2, 0.1).present)
    asks.start()
    assert eventually(lambda: phase_of(board) == "waiting for silos")
    board.arrived("b")
    asks.join()
    post(board)
    assert phase_of(board) == "matched-update"


def test_a_silo_set_aside_in_the_middle_of_a_round_does_not_hold_it_up() -> None:
    board = board_of(remote(["a", "b", "c"]))
    request = request_for(board)
    replies = RestRuntime(board, 2, 100).ask(request)

    def misbehave() -> None:
        while board.task_for("b") is None:
            time.sleep(0.01)
        posted = Posted(request, board.manifest)
        for _ in range(3):
            board.accept("b", 1, "matched-update", posted.name, b"nonsense")

    timers = [later(0.05, answer, board, name, request) for name in "ac"] + [later(0.1, misbehave)]
    assert sorted(reply.silo for reply in replies) == ["a", "c"]
    for timer in timers:
        timer.join()


def test_weights_are_never_packed_once_the_server_may_step() -> None:
    """A request holds the live parameters; a silo that is late must not get a mix of two rounds."""
    board = board_of()
    request = request_for(board)
    posted = Posted(request, board.manifest)
    board.post(posted)
    before = posted.body("")
    board.close(())
    for tensor in request.weights.values():
        tensor.add_(1.0)
    assert before is not None
    assert posted.body("") is None


def test_hundreds_of_silos_at_once_get_one_and_the_same_bytes() -> None:
    board = board_of(remote(hidden=[400], inputs=400))
    posted = post(board)
    bodies: list[bytes | None] = []
    threads = [threading.Thread(target=lambda: bodies.append(posted.body(""))) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(body) for body in bodies}) == 1


def test_who_has_the_weights_does_not_get_them_again() -> None:
    board = board_of(remote(hidden=[100], inputs=100))
    posted = post(board, "statistics")
    whole, short = posted.body(""), posted.body(posted.weights)
    assert whole is not None
    assert short is not None
    assert len(short) < 2000 < 40_000 < len(whole)
    assert len(posted.body("others") or b"") == len(whole)


def test_weights_of_one_version_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    board = board_of()
    runtime = RestRuntime(board, 2, 1)
    statistics, gradients = request_for(board, "statistics"), request_for(board, "matched-update")
    first, second = runtime._posting.post(statistics), runtime._posting.post(gradients)
    assert first.weights == second.weights
    other = request_for(board, "statistics", round_=2, fill=0.1)
    assert runtime._posting.post(other).weights != first.weights


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("hidden", [[], [4]])
def test_the_size_of_a_variance_is_known_beforehand(covariance: str, hidden: list[int]) -> None:
    board = board_of(remote(covariance=covariance, hidden=hidden))
    size = (hidden[-1] if hidden else 3) + 1
    assert board.manifest.statistic == ([size, size] if covariance == "full" else [size])
    posted = post(board, "statistics")
    assert board.accept("a", 1, "statistics", posted.name, good_body(posted, "a")) is None


def replies_of(board: Board, names: str) -> Iterator[bytes]:
    posted = post(board)
    for name in names:
        reply = posted.read(good_body(posted, name), name)
        yield pack_reply(reply, board.manifest)


def test_what_is_read_from_an_answer_packs_to_the_same_bytes() -> None:
    board = board_of()
    posted = post(board)
    assert list(replies_of(board, "ab")) == [good_body(posted, name) for name in "ab"]


def test_halves_widen_to_each_parameters_own_type() -> None:
    board = board_of(wire="float16")
    posted = post(board)
    reply = posted.read(good_body(posted, "a"), "a")
    assert {tensor.dtype for tensor in reply.tensors["gradient"].values()} == {torch.float32}


def test_a_silos_loss_is_seen_as_soon_as_its_gradient_has_come() -> None:
    board = fresh()
    board.join("a", 10)
    posted = post(board)
    assert board.silos["a"].loss is None
    assert board.accept("a", 1, "matched-update", posted.name, good_body(posted, "a")) is None
    reply = posted.read(good_body(posted, "a"), "a")
    assert board.silos["a"].loss == reply.numbers["loss"]
