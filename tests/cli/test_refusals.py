"""Odd input of many kinds is read rightly or refused in one sentence, and tables keep their numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import Refusal, fedilc
from terminals import in_terminal

from fedilc import Federation, algorithms
from fedilc.data.tables.silo_files import SiloFiles, read_table
from fedilc.errors import FedILCError
from fedilc.report.tables import comparison_table

HISTORY = [
    {
        "round": 6,
        "train_loss": 0.1,
        "validation_loss": 0.2,
        "validation_accuracy": 0.3,
        "test_loss": 0.4,
        "test_accuracy": 0.5,
        "fairness": {"worst_accuracy": 0.6, "worst_silo": "a"},
    }
]


@pytest.mark.parametrize("folder", ["runs/color-digits", "/home/user/projects/hospital/runs/color-digits"])
def test_a_comparison_of_folders_shows_every_number_in_a_terminal(folder: str) -> None:
    shown = in_terminal(
        comparison_table("runs", {f"{folder}/{n}-seed0": HISTORY for n in algorithms.PAPER}, "run"), 80
    )
    for number in ("0.400", "0.500", "0.600"):
        assert shown.count(number) >= len(algorithms.PAPER)


def test_a_comparison_of_all_algorithms_shows_whole_headings_in_a_terminal() -> None:
    assert "…" not in in_terminal(comparison_table("demo", dict.fromkeys(algorithms.names(), HISTORY)), 80)


def test_a_comparison_of_runs_that_only_trained_shows_their_train_loss() -> None:
    shown = in_terminal(comparison_table("demo", {"a": [{"round": 1, "train_loss": 0.1}]}), 80)
    assert "0.100" in shown
    assert "chosen by ." not in " ".join(shown.split())


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


def test_silos_as_an_empty_table_are_refused_in_one_sentence(refusal: Refusal) -> None:
    assert "data.silos" in refusal("run", "--set", 'data={source="files",silos={}}')


def test_the_bare_command_shows_its_help_without_an_empty_complaint() -> None:
    done = subprocess.run([sys.executable, "-m", "fedilc"], capture_output=True, text=True, check=False)
    assert "Usage: " in done.stdout + done.stderr
    assert "fedilc: (" not in done.stderr


def test_an_unknown_command_points_to_a_help_that_exists(refusal: Refusal) -> None:
    assert "(fedilc --help tells more)" in refusal("rnu")


def fed(folder: Path, loss: str = "multiclass") -> Federation:
    return SiloFiles("*", "label", None, loss, 0.3).federation(0, folder)


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.uint64])
def test_unsigned_class_numbers_of_an_npz_are_read(tmp_path: Path, kind: type) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((8, 1)), label=(np.arange(8) % 3).astype(kind))
    fed(tmp_path)


def test_an_npz_in_the_other_byte_order_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((8, 1), ">f8"), label=(np.arange(8) % 2).astype(">i8"))
    fed(tmp_path)


def test_an_npz_whose_x_is_one_number_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.float32(3), label=np.arange(3) % 2)
    with pytest.raises(FedILCError):
        read_table(tmp_path / "a.npz", "label")


def test_an_npz_with_damaged_bytes_is_refused_wherever_they_are(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "a.npz", x=np.random.default_rng(0).random((90, 2)), label=np.arange(90) % 2
    )
    good = (tmp_path / "a.npz").read_bytes()
    others = set()
    for start in range(0, len(good), 10):
        spoilt = bytearray(good)
        spoilt[start : start + 20] = bytes(len(spoilt[start : start + 20]))
        (tmp_path / "a.npz").write_bytes(spoilt)
        try:
            read_table(tmp_path / "a.npz", "label")
        except FedILCError:
            pass
        except Exception as error:
            others.add(type(error).__name__)
    assert others == set()


def test_a_label_column_that_occurs_twice_is_refused_rather_than_made_an_input(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,label,label\n" + "1,0,0\n2,1,1\n" * 9)
    with pytest.raises(FedILCError):
        read_table(tmp_path / "a.csv", "label")
