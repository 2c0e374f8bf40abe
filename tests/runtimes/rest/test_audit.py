"""What is written down: events, refusals summed up, metrics, readiness, logs, and what systemd is told."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from fedilc.cli import main
from fedilc.runtimes.rest import audit as audit_module
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.auth import Tokens, add_token
from fedilc.runtimes.rest.coordinator import AUDIT_FILE
from fedilc.runtimes.rest.membership import STRIKES
from fedilc.runtimes.rest.task_queue import TaskQueue
from fedilc.storage.run_folder import examine
from rest import bearer, eventually, good_body, in_background, post, put, queue_of, raw_connection, served


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def audited(tmp_path: Path) -> tuple[TaskQueue, Path]:
    queue = queue_of()
    queue.audit = Audit(tmp_path / AUDIT_FILE)
    return queue, tmp_path / AUDIT_FILE


def test_five_thousand_wrong_tokens_are_a_few_lines_that_count_them_all(tmp_path: Path) -> None:
    clock = Clock()
    audit = Audit(tmp_path / AUDIT_FILE, clock)
    for number in range(5000):
        clock.now += 0.06
        status = 401 if number % 500 < 10 else 429
        audit.refused(status, "192.0.2.7", "this needs its bearer token" if status == 401 else "wait")
    audit.flush(now=True)
    found = lines(tmp_path / AUDIT_FILE)
    assert len(found) < 40
    assert sum(line.get("times", 1) for line in found) == 5000
    assert {line["address"] for line in found} == {"192.0.2.7"}
    assert sum(audit.refusals.values()) == 5000


def test_refusals_of_ever_new_kinds_do_not_fill_the_disk(tmp_path: Path) -> None:
    audit = Audit(tmp_path / AUDIT_FILE, Clock())
    for number in range(5000):
        audit.refused(401, f"2001:db8::{number:x}", "this needs its bearer token")
    audit.flush(now=True)
    found = lines(tmp_path / AUDIT_FILE)
    assert len(found) <= audit_module.MAX_KINDS + 2
    assert sum(line.get("times", 1) for line in found) == 5000


def test_joins_that_repeat_are_summed_up_and_each_silo_is_named(tmp_path: Path) -> None:
    queue, clock = queue_of(), Clock()
    queue.audit = Audit(tmp_path / AUDIT_FILE, clock)
    for number in range(3000):
        clock.now += 0.01
        queue.join("ab"[number % 2], 10 + number)
    queue.audit.flush(now=True)
    found = lines(tmp_path / AUDIT_FILE)
    assert [(line["event"], line["silo"], line.get("times", 1)) for line in found] == [
        ("joined", "a", 1),
        ("joined", "b", 1),
        ("joined", "a", 1499),
        ("joined", "b", 1499),
    ]


def test_every_changed_line_of_an_audit_is_found(tmp_path: Path) -> None:
    file = tmp_path / AUDIT_FILE
    audit = Audit(file)
    for number in range(3):
        audit.event("joined", silo="Süd", examples=number)
    assert examine(tmp_path)[AUDIT_FILE] is None
    content = file.read_bytes()
    for bit in [*range(0, 8 * len(content), 7), 8 * len(content) - 3]:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        assert "is damaged" in str(examine(tmp_path)[AUDIT_FILE])


def test_what_a_crash_left_of_a_line_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / AUDIT_FILE
    Audit(file).event("started")
    file.write_bytes(file.read_bytes() + b'{"time": "20')
    Audit(file).event("ended")
    assert [line["event"] for line in lines(file)] == ["started", "ended"]
    assert examine(tmp_path)[AUDIT_FILE] is None


def test_a_large_audit_file_makes_room_for_a_new_one_and_nine_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "MAX_BYTES", 1000)
    audit = Audit(tmp_path / AUDIT_FILE)
    for number in range(200):
        audit.event("round", round=number)
    kept = [tmp_path / f"audit-{number}.jsonl" for number in range(9, 0, -1)]
    files = [*kept, tmp_path / AUDIT_FILE]
    assert sorted(files) == sorted(tmp_path.iterdir())
    assert all(file.stat().st_size < 1200 for file in files)
    numbers = [line["round"] for file in files for line in lines(file)]
    assert numbers == list(range(numbers[0], 200))
    assert numbers[0] > 0
    found = examine(tmp_path)
    assert {found[file.name] for file in files} == {None}


def test_sigterm_ends_a_coordinator_as_ctrl_c_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end() -> None:
        assert eventually(lambda: file.exists() and "started" in file.read_text())
        os.kill(os.getpid(), signal.SIGTERM)

    def not_handled(*_: object) -> None:
        raise AssertionError

    file = tmp_path / "run" / AUDIT_FILE
    words = f"serve color-digits --insecure --port 0 --out {tmp_path / 'run'}".split()
    monkeypatch.setattr(sys, "argv", ["fedilc", *words])
    before = signal.signal(signal.SIGTERM, not_handled)
    try:
        with in_background(end), pytest.raises(SystemExit) as stop:
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stop.value.code == 130
    assert "stopped after round 0; run the same command to continue" in capsys.readouterr().err
    assert [(line["event"], line.get("outcome")) for line in lines(file)][-1] == ("ended", "stopped")


def test_refusals_over_http_are_written_with_their_reasons(
    audited: tuple[TaskQueue, Path], tmp_path: Path
) -> None:
    queue, file = audited
    add_token(tmp_path / "tokens.json", "a")
    with served(queue, Tokens.read(tmp_path / "tokens.json")) as client:
        client.get("/v1/silos/a/task", headers=bearer("x"))
        with raw_connection(client) as raw:
            raw.sendall(b"GET /" + b"x" * 20_000)
            assert b"414" in raw.recv(100)
    found = [line for line in lines(file) if line["event"] == "refused"]
    assert [line["status"] for line in found] == [401, 414]
    assert all(line["address"] == "127.0.0.1" and line["reason"] and line["time"] for line in found)


def test_who_joined_answered_was_lost_returned_and_set_aside_is_written(
    audited: tuple[TaskQueue, Path],
) -> None:
    queue, file = audited
    queue.join("a", 10)
    open_request = post(queue)
    with served(queue) as client:
        assert put(client, open_request, "a", good_body(open_request, "a")).status_code == 200
        queue.record({"round": 1, "train_loss": 0.5}, 0.25)
        queue.close(("b",))
        client.get("/v1/silos/b/task")
        open_request = post(queue, round_=2)
        for _ in range(STRIKES):
            assert put(client, open_request, "b", b"nonsense").status_code == 422
    queue.finish("complete")
    events = [(line["event"], line.get("silo")) for line in lines(file)]
    nonsense = [("nonsense", "b"), ("refused", None)] * STRIKES
    assert [event for event in events if event[0] != "refused"] == [
        ("joined", "a"),
        ("round", None),
        ("lost", "b"),
        ("returned", "b"),
        *[event for event in nonsense if event[0] != "refused"],
        ("set aside", "b"),
        ("ended", None),
    ]
    (completed,) = (line for line in lines(file) if line["event"] == "round")
    assert (completed["round"], completed["answered"]) == (1, ["a"])


def test_a_silo_that_points_against_the_others_is_shown_while_it_does_and_written_once(
    audited: tuple[TaskQueue, Path],
) -> None:
    queue, file = audited
    shown = []
    for number, against in enumerate(({"b": 10}, {"b": 11}, {}), 11):
        queue.record({"round": number, "train_loss": 0.5} | ({"against": against} if against else {}), 0.25)
        shown.append([silo["notice"] for silo in queue.snapshot()["silos"]])
    sentence = "for {} rounds its updates have pointed against those of most other silos"
    assert shown == [[None, sentence.format(10)], [None, sentence.format(11)], [None, None]]
    queue.finish("complete")
    (found,) = (line for line in lines(file) if line["event"] == "against")
    assert (found["silo"], found["round"], found["reason"]) == ("b", 11, sentence.format(10))


def test_an_audit_file_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = Audit(tmp_path / "none" / AUDIT_FILE)
    for _ in range(100):
        audit.event("joined", silo="a")
    assert caplog.text.count("cannot be written") == 1
