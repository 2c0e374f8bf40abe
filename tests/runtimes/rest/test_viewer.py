"""The page of a run folder shows a run whichever runtime trained it."""

from __future__ import annotations

from pathlib import Path

from fedilc.federation import RunFolder
from fedilc.runtimes.rest.viewer import FolderView


def folder(tmp_path: Path, rounds: int) -> Path:
    run = RunFolder(tmp_path / "run")
    run.create({"rounds": 3, "algorithm": "fedsgd", "federation": "study", "silos": {"a": {}, "b": {}}})
    for number in range(1, rounds + 1):
        record = {"round": number, "train_loss": 0.5, "silos": {"a": {"examples": 9, "train_loss": 0.4}}}
        run.save(record | ({"set_aside": {"b": "too long"}} if number == 2 else {}), 0.1, {}, {}, None)
    run.release()
    return run.path


def test_a_complete_run_is_over_and_its_silos_have_replied_or_are_lost(tmp_path: Path) -> None:
    view = FolderView(folder(tmp_path, 3))
    shown = view.snapshot()
    assert view.is_over()
    assert (shown["run"], shown["completed"], shown["outcome"]) == ("study", 3, "complete")
    silos = {silo["name"]: silo for silo in shown["silos"]}
    assert (silos["a"]["state"], silos["a"]["examples"], silos["a"]["loss"]) == ("answered", 9, 0.4)
    assert (silos["b"]["state"], silos["b"]["reason"]) == ("lost", "set aside in round 2: too long")


def test_an_interrupted_run_says_how_many_rounds_are_done(tmp_path: Path) -> None:
    assert FolderView(folder(tmp_path, 1)).snapshot()["outcome"] == "1 of 3 rounds are done"


def test_a_run_before_its_first_round_can_be_shown(tmp_path: Path) -> None:
    assert FolderView(folder(tmp_path, 0)).snapshot()["round"] == 0
