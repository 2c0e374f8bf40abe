"""The command in this process: what it prints where all is well, and its one sentence where it refuses."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from fedilc.cli import main
from fedilc.cli.app import app


def fedilc(*arguments: object) -> str:
    """Run the command; what it wrote on stdout."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def one_sentence(stderr: str) -> str:
    """The contract of every refusal: one line on stderr, with the command's name in front."""
    assert stderr.startswith("fedilc: ")
    assert stderr.endswith("\n")
    assert stderr.count("\n") == 1
    assert "Traceback" not in stderr
    return stderr.removeprefix("fedilc: ").strip()


class Refusal:
    """Runs the command where it must refuse, and gives its one sentence."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.printed = ""  # what it wrote on stdout before it refused

    def __call__(self, *arguments: object) -> str:
        self._monkeypatch.setattr(sys, "argv", ["fedilc", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        self.printed, said = self._capsys.readouterr()
        return one_sentence(said)
