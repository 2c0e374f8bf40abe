"""`--log-format`: lines with time and level, as text or JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from command import Refusal

from fedilc.cli.console import log_to_stderr
from fedilc.cli.join import SiloProgress
from fedilc.runtimes.rest.audit import Audit


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
    SiloProgress("north", None)("waiting for the coordinator (refused\x1b)", "waiting")
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
