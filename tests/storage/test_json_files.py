"""Whatever changes in a JSON object or its lines changes the digest; damage costs only its own line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedilc.errors import FedILCWarning
from fedilc.storage.files import (
    TimingFile,
    append_line,
    chain_digest,
    check_digest,
    complete_lines,
    replace_lines,
    with_digest,
)

OBJECT = {"round": 3, "loss": 0.5, "silos": {"a": [1, 2]}}


def test_the_order_of_keys_does_not_matter() -> None:
    assert check_digest(dict(reversed(with_digest(OBJECT).items()))) == OBJECT


@pytest.mark.parametrize("length", [16, 64])
@pytest.mark.parametrize(
    "change", [{"round": 4}, {"more": 1}, {"silos": {"a": [2, 1]}}, {"digest": ""}, {"digest": 3}]
)
def test_every_change_is_found(change: dict[str, object], length: int) -> None:
    with pytest.raises(ValueError, match="does not match its digest"):
        check_digest(with_digest(OBJECT, length) | change)


def test_an_object_without_a_digest_is_not_valid() -> None:
    with pytest.raises(ValueError, match="does not match its digest"):
        check_digest(OBJECT)


def test_lines_are_chained_in_their_order() -> None:
    lines = [b"one", b"two", b"three"]
    assert chain_digest(lines) == chain_digest(lines[2:], chain_digest(lines[:2]))
    assert len({chain_digest(order) for order in (lines, lines[::-1], lines[:2], [b"onetwo", b"three"])}) == 4


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
