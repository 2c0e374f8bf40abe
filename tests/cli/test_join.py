"""What `fedilc join` says of itself while it works, in a terminal and in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedilc.cli import join


def said(terminal: bool, *sentences: str) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, color_system=None)
    progress = join._Progress(console, "north")
    progress.start()
    for sentence in sentences:
        progress(sentence)
    progress.close()
    return file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_may_be_called_anything(terminal: bool) -> None:
    assert "joined [/b] odd [link=x]" in said(terminal, "joined [/b] odd [link=x], fedsgd, 3 rounds")


@pytest.mark.parametrize("terminal", [True, False])
def test_what_another_machine_calls_a_run_cannot_move_the_cursor(terminal: bool) -> None:
    assert "\x1b]0;" not in said(terminal, "joined \x1b]0;evil\x07\x1b[2J, fedsgd, 3 rounds")


def test_a_log_has_a_line_about_rounds_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["joined study", "round 1 of 3: gradients", "round 2 of 3: gradients"]
    assert said(False, *lines) == "north: joined study\n"
    monkeypatch.setattr(join, "_LINE_SECONDS", 0.0)
    assert said(False, *lines) == "".join(f"north: {line}\n" for line in lines)
