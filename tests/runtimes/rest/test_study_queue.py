"""The queue of a study: tasks in turn, declarations first, one answer each, and silos that leave."""

from __future__ import annotations

import threading
import time

import pytest

from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import ProtocolError
from fedilc.runtimes.remote.study_manifest import StudyManifest, read_study_manifest
from fedilc.runtimes.rest.membership import RefusedError
from fedilc.runtimes.rest.study_queue import LostForGoodError, StudyQueue, StudyTask
from fedilc.runtimes.rest.task_queue import Body, Spool


class Word(StudyTask[str]):
    """A task that is answered by any word but "nonsense"."""

    round, step = 1, "word"

    def __init__(self, name: str, silos: tuple[str, ...], declaration: StudyTask[bool] | None = None) -> None:
        self.name, self.silos, self.declaration = name, silos, declaration

    def pack(self, silo: str) -> bytes:
        return f"{self.name} for {silo}".encode()

    def max_bytes(self, _silo: str) -> int:
        return 100

    def read(self, body: bytes, _silo: str) -> str:
        if body == b"nonsense":
            raise ProtocolError("its word is nonsense")
        return body.decode()


def queue_of(*silos: str, lost_after: float | None = None) -> StudyQueue:
    manifest = StudyManifest(
        run="tried",
        silos=list(silos),
        table=TableSettings(label="died"),
        label={},
        loss="binary",
        outputs=1,
        settings={},
    )
    assert read_study_manifest(manifest.model_dump(mode="json")) == manifest
    queue = StudyQueue(manifest, lost_after=lost_after)
    for name in silos:
        queue.join(name, 10)
    return queue


def answer(queue: StudyQueue, silo: str, task: str, word: bytes) -> None:
    body = Body(Spool())
    body.write(word)
    queue.accept(silo, 1, "word", task, body)


def asking(queue: StudyQueue, *tasks: Word) -> tuple[list[threading.Thread], dict[str, dict[str, str]]]:
    """Threads that wait for answers, and what they got."""
    found: dict[str, dict[str, str]] = {}
    threads = []
    for task in tasks:
        thread = threading.Thread(
            target=lambda own=task: found.update({own.name: queue.ask(own)}), daemon=True
        )
        thread.start()
        threads.append(thread)
        while not any(queue.task_for(name) for name in task.silos):
            time.sleep(0.01)
    return threads, found


def given(queue: StudyQueue, silo: str) -> str:
    opened = queue.task_for(silo)
    return "" if opened is None else (opened.body("", silo=silo) or b"").decode()


def test_a_silo_does_tasks_in_turn_and_what_they_need_first() -> None:
    queue = queue_of("a", "b")
    first: StudyTask[bool] = Word("declared", ("a", "b"))  # type: ignore[assignment]  # its answer is a word
    threads, found = asking(queue, Word("one", ("a", "b"), first), Word("two", ("a",)))
    assert given(queue, "a") == "declared for a"
    answer(queue, "a", "declared", b"yes")
    assert given(queue, "a") == "one for a"
    answer(queue, "a", "one", b"x")
    answer(queue, "a", "one", b"x")  # sent twice, because the first response was lost
    with pytest.raises(RefusedError, match="another reply"):
        answer(queue, "a", "one", b"y")
    assert given(queue, "a") == "two for a"
    queue.join("a", 10)  # started again: it knows nothing
    answer(queue, "a", "two", b"z")
    answer(queue, "b", "declared", b"yes")
    answer(queue, "b", "one", b"w")
    for thread in threads:
        thread.join(5)
    assert found == {"one": {"a": "x", "b": "w"}, "two": {"a": "z"}}
    assert given(queue, "a") == ""


def test_three_wrong_answers_set_a_silo_aside_and_it_is_named() -> None:
    queue = queue_of("a")
    caught: list[LostForGoodError] = []

    def ask() -> None:
        try:
            queue.ask(Word("one", ("a",)))
        except LostForGoodError as error:
            caught.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    while not queue.task_for("a"):
        time.sleep(0.01)
    for _ in range(3):
        with pytest.raises(RefusedError, match="its word is nonsense"):
            answer(queue, "a", "one", b"nonsense")
    thread.join(5)
    assert [(one.silo, one.reason) for one in caught] == [("a", "its word is nonsense")]


def test_a_silo_that_is_away_is_lost_only_if_the_study_continues_without() -> None:
    queue = queue_of("a", lost_after=0.2)
    queue.silos["a"].last_seen = time.time() - 60
    with pytest.raises(LostForGoodError, match="has not been seen"):
        queue.ask(Word("one", ("a",)))


def test_tasks_of_others_and_sub_coordinators_are_refused() -> None:
    queue = queue_of("a")
    with pytest.raises(RefusedError, match="not open for this silo"):
        answer(queue, "a", "other", b"x")
    with pytest.raises(RefusedError, match="leaves silos out in turn"):
        queue.join_sub_coordinator("north", {"a": 3}, {})
    with pytest.raises(ProtocolError, match="another protocol"):
        read_study_manifest({})
