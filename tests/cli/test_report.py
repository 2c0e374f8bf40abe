"""`fedilc report` compares run folders and refuses what is no history."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Refusal, fedilc
from small_runs import GOOD, OTHER, PNG, experiment, names, table, tables

from fedilc import algorithms


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


def test_report_compares_the_run_folders_it_finds(
    finished: tuple[Path, str], compared: tuple[Path, str], tmp_path: Path
) -> None:
    printed = fedilc("report", finished[0], compared[0], "--out", tmp_path / "report.png")
    assert names(table(printed)) == ["run", *sorted(algorithms.PAPER)]
    assert "different numbers of rounds" in " ".join(printed.split())
    assert (tmp_path / "report.png").read_bytes().startswith(PNG)
    assert f"picture: {tmp_path / 'report.png'}" in printed


def test_report_tells_runs_of_one_name_apart_by_their_folders(
    finished: tuple[Path, str], copy: Path, tmp_path: Path
) -> None:
    printed = fedilc("report", finished[0], copy, "--out", tmp_path / "report.png")
    assert names(table(printed)) == [str(finished[0]), str(copy)]


def test_report_has_a_table_and_a_picture_for_each_set_of_data(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    (tmp_path / "far.csv").write_text(GOOD.replace(".", ".2"))
    path = experiment(tmp_path, OTHER, "test = 'far.csv'")
    fedilc("run", path, "--out", tmp_path / "before")
    (tmp_path / "far.csv").write_text(GOOD.replace(".", ".7"))
    fedilc("run", path, "--out", tmp_path / "after")
    printed = fedilc("report", finished[0], tmp_path, "--out", tmp_path / "report.png")
    assert [names(rows) for rows in tables(printed)] == [["run"], ["after"], ["before"]]
    for title in ("color-digits · seed 0", "mine · seed 0", "mine, data 2 · seed 0"):
        assert title in [line.strip() for line in printed.splitlines()]
    for name in ("report.png", "report-2.png", "report-3.png"):
        assert f"picture: {tmp_path / name}\n" in printed
        assert (tmp_path / name).read_bytes().startswith(PNG)
    assert printed.endswith("in different tables, because their numbers cannot be compared.\n")


def test_report_leaves_out_a_run_without_a_completed_round(
    finished: tuple[Path, str], copy: Path, tmp_path: Path
) -> None:
    (copy / "history.jsonl").unlink()
    printed = fedilc("report", finished[0], copy, "--out", tmp_path / "report.png")
    assert names(table(printed)) == [finished[0].name]


def test_report_makes_the_folder_its_picture_goes_to(finished: tuple[Path, str], tmp_path: Path) -> None:
    picture = tmp_path / "not" / "yet" / "report.png"
    assert f"picture: {picture}" in fedilc("report", finished[0], "--out", picture)
    assert picture.read_bytes().startswith(PNG)


@pytest.mark.parametrize("name", ["report.xyz", "file/report.png"], ids=["format", "folder"])
def test_report_refuses_a_picture_that_cannot_be_written(
    finished: tuple[Path, str], tmp_path: Path, refusal: Refusal, name: str
) -> None:
    (tmp_path / "file").write_text("")
    said = refusal("report", finished[0], "--out", tmp_path / name)
    assert said.startswith(f"the picture {tmp_path / name} cannot be written: ")
    assert not (tmp_path / name).exists()


def test_report_refuses_where_there_is_no_run(tmp_path: Path, refusal: Refusal) -> None:
    assert "a run folder holds run.json" in refusal("report", tmp_path)


def test_report_refuses_where_no_run_has_completed_a_round(copy: Path, refusal: Refusal) -> None:
    (copy / "history.jsonl").unlink()
    assert "has completed a round" in refusal("report", copy)
