"""Files of lines: what is incomplete is left out, and damage costs only its own line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedilc.errors import FedILCWarning
from fedilc.federation.json_lines import TimingFile, append_line, complete_lines, replace_lines


def test_a_line_that_is_not_complete_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert complete_lines(path) == []
    append_line(path, b"one\n")
    append_line(path, b"two")
    assert complete_lines(path) == [b"one"]
    replace_lines(path, [b"one"])
    assert path.read_bytes() == b"one\n"


def timing(tmp_path: Path, rounds: int = 3) -> TimingFile:
    file = TimingFile(tmp_path / "timing.jsonl")
    for number in range(1, rounds + 1):
        file.append({"round": number, "seconds": 0.5} | ({"command": "fedilc run"} if number == 1 else {}))
    return file


def test_the_times_are_cut_back_to_a_round(tmp_path: Path) -> None:
    file = timing(tmp_path)
    file.cut(2)
    assert len(complete_lines(file.path)) == 2
    assert file.commands() == ["fedilc run"]


def test_a_damaged_line_is_dropped_with_a_warning(tmp_path: Path) -> None:
    file = timing(tmp_path)
    file.path.write_bytes(file.path.read_bytes().replace(b"0.5", b"0.7", 1))
    assert file.commands() == []
    with pytest.warns(FedILCWarning, match="1 damaged lines: only the times of these rounds are lost"):
        file.cut(3)
    assert len(complete_lines(file.path)) == 2


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    with pytest.warns(FedILCWarning, match="cannot be written: No such file or directory; the run continues"):
        timing(tmp_path / "none", rounds=1)
