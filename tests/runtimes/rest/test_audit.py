"""What is written down: events, refusals summed up, metrics, readiness, logs, and what systemd is told."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Refusal

from fedilc.commands.join import _Log
from fedilc.commands.logs import log_to_stderr
from fedilc.runtimes.rest import audit as audit_module
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.board import STRIKES, Board
from fedilc.runtimes.rest.coordinator import AUDIT_FILE
from fedilc.runtimes.rest.systemd import notify, watchdog_seconds
from fedilc.runtimes.rest.tokens import Tokens, add_token
from rest import bearer, board_of, good_body, post, put, raw_line, served


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def audited(tmp_path: Path) -> tuple[Board, Path]:
    board = board_of()
    board.audit = Audit(tmp_path / AUDIT_FILE)
    return board, tmp_path / AUDIT_FILE


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


def test_refusals_over_http_are_written_with_their_reasons(
    audited: tuple[Board, Path], tmp_path: Path
) -> None:
    board, file = audited
    add_token(tmp_path / "tokens.json", "a")
    with served(board, Tokens.read(tmp_path / "tokens.json")) as client:
        client.get("/v1/silos/a/task", headers=bearer("x"))
        with raw_line(client) as raw:
            raw.sendall(b"GET /" + b"x" * 20_000)
            assert b"414" in raw.recv(100)
    found = [line for line in lines(file) if line["event"] == "refused"]
    assert [line["status"] for line in found] == [401, 414]
    assert all(line["address"] == "127.0.0.1" and line["reason"] and line["time"] for line in found)


def test_who_joined_answered_was_lost_returned_and_set_aside_is_written(audited: tuple[Board, Path]) -> None:
    board, file = audited
    board.join("a", 7)
    posted = post(board)
    with served(board) as client:
        assert put(client, posted, "a", good_body(posted, "a")).status_code == 200
        board.record({"round": 1, "train_loss": 0.5}, 0.25)
        board.close(("b",))
        client.get("/v1/silos/b/task")
        posted = post(board, round_=2)
        for _ in range(STRIKES):
            assert put(client, posted, "b", b"nonsense").status_code == 422
    board.finish("complete")
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


def test_an_audit_file_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = Audit(tmp_path / "none" / AUDIT_FILE)
    for _ in range(100):
        audit.event("joined", silo="a")
    assert caplog.text.count("cannot be written") == 1


def test_metrics_are_for_viewers_and_in_prometheus_own_format(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    silo, viewer = add_token(file, "a"), add_token(file, "me", "viewers")
    board = board_of()
    board.record({"round": 1, "train_loss": 0.5, "test_loss": None}, 0.25)
    with served(board, Tokens.read(file)) as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers=bearer(silo)).status_code == 401
        answer = client.get("/metrics", headers=bearer(viewer))
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [line for line in answer.text.splitlines() if not line.startswith("#")]
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in samples}
    assert values["fedilc_rounds_completed"] == 1
    assert values["fedilc_train_loss"] == 0.5
    assert values['fedilc_silos{state="waiting"}'] == 2
    assert values['fedilc_silo_examples{silo="a"}'] == 10
    assert values['fedilc_http_refused_total{status="401"}'] == 2
    assert values["fedilc_connections"] >= 1
    named = {line.split()[2] for line in answer.text.splitlines() if line.startswith("# TYPE")}
    assert {key.partition("{")[0] for key in values} == named


def test_a_coordinator_is_ready_until_its_run_is_over() -> None:
    board = board_of()
    with served(board) as client:
        assert client.get("/v1/ready").status_code == 200
        board.finish("complete")
        assert client.get("/v1/ready").status_code == 503
        assert client.get("/v1/health").status_code == 200


def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notify("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        assert watchdog_seconds() == 0.2
        notify("READY=1")
        assert listener.recv(100) == b"READY=1"
        with served(board_of()):
            assert listener.recv(100) == b"WATCHDOG=1"
            assert listener.recv(100) == b"WATCHDOG=1"


@pytest.fixture
def _own_logging() -> Iterator[None]:
    logger = logging.getLogger("fedilc")
    before = logger.handlers, logger.propagate, logger.level
    yield
    logger.handlers, logger.propagate = before[:2]
    logger.setLevel(before[2])


@pytest.mark.usefixtures("_own_logging")
def test_logs_have_times_and_levels_as_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("json")
    Audit().event("joined", silo="a", examples=7)
    Audit().event("set aside", silo="b\x1b[2J", reason="nonsense\n")
    _Log("north")("waiting for the coordinator (refused\x1b)")
    found = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["level"], line["event"].split()[0]) for line in found] == [
        ("info", "joined"),
        ("warning", "set"),
        ("warning", "waiting"),
    ]
    assert found[0]["examples"] == 7
    assert found[2]["silo"] == "north"
    assert all("T" in line["time"] for line in found)
    log_to_stderr("text")
    Audit().event("set aside", silo="b\x1b[2J", reason="nonsense\n")
    (line,) = capsys.readouterr().err.splitlines()
    assert "warning set aside" in line
    assert "\x1b" not in line


def test_a_log_format_that_is_none_is_one_sentence(refusal: Refusal) -> None:
    assert "choose text or json" in refusal("serve", "color-digits", "--insecure", "--log-format", "xml")
