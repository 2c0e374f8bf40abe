"""The command compares run folders and refuses what is no history."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Refusal, fedilc


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("place") / "one"
    fedilc("run", "color-digits", "-a", "fedsgd", "--rounds", 1, "--set", "model.hidden=[8]", "--out", place)
    return place


def test_report_of_the_folder_one_is_in_names_its_row(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    assert "one " in fedilc("report", ".")


def test_report_says_where_its_picture_really_is(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    printed = fedilc("report", "one", "--out", "picture")
    (line,) = [line for line in printed.splitlines() if line.startswith("picture: ")]
    assert (run.parent / line.removeprefix("picture: ")).is_file()


@pytest.mark.parametrize("line", ["[]", "3", '{"round": 1}', '{"a": 1}'])
def test_report_refuses_a_history_that_is_none(
    run: Path, tmp_path: Path, line: str, refusal: Refusal
) -> None:
    (tmp_path / "run.json").write_text((run / "run.json").read_text())
    (tmp_path / "history.jsonl").write_text(line + "\n")
    assert "history.jsonl is damaged" in refusal("report", tmp_path)
