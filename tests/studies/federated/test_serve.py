"""A study over silos as processes is the study of the same tables at one place, to the bit."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from command import Refusal
from fleets import fleet
from remote_studies import (
    HEART,
    TWELVE,
    assert_same_study,
    joined,
    studied_locally,
    write_hospitals,
    write_study_file,
    write_twelve,
)

pytestmark = pytest.mark.slow
SHORT: dict[str, Any] = {
    "algorithms": ["fedsgd", "fishr-inter-geo"],
    "rounds": 6,
    "seeds": 2,
    "learning_rates": [0.01, 0.03],
}
TINY: dict[str, Any] = {
    "algorithms": ["fedsgd", "scaffold"],
    "rounds": 4,
    "seeds": 1,
    "learning_rates": [0.03],
    "network_decays": [0.0],
}


def study_of(folder: Path, file: Path, silos: list[str]) -> dict[str, Any]:
    with fleet(folder) as processes:
        coordinator, url = processes.serve(file, "--out", folder / "rest")
        members = [joined(processes, url, name) for name in silos]
        assert coordinator.ended(400) == 0, coordinator.said
        for one in members:
            assert one.ended() == 0, one.said
    found: dict[str, Any] = json.loads((folder / "rest/study.json").read_text())
    return found


def test_four_hospitals_over_http_have_the_study_of_one_place(tmp_path: Path) -> None:
    silos = write_hospitals(tmp_path)
    found = study_of(tmp_path, write_study_file(tmp_path, silos, HEART, SHORT), silos)
    assert_same_study(studied_locally(tmp_path, silos, HEART, SHORT), found)
    assert any("logistic is left out, because silo" in note for note in found["notes"])
    report = (tmp_path / "rest/report.html").read_text()
    assert "not estimable" in report
    assert "Who took part" in report
    for name in silos:
        assert "What was sent" in (tmp_path / f"results/{name}-study.html").read_text()
    assert any("models of pooled data" in note for note in found["notes"])


def test_twelve_silos_with_categories_and_gaps_have_the_study_of_one_place(tmp_path: Path) -> None:
    silos = write_twelve(tmp_path)
    more = {"averages": ["none", "ema"], "hold_out": ["s2", "s7"], "references": False}
    settings = TINY | {"algorithms": ["logistic", "agreed-geometric"]} | more
    found = study_of(tmp_path, write_study_file(tmp_path, silos, TWELVE, settings), silos)
    assert_same_study(studied_locally(tmp_path, silos, TWELVE, settings), found)
    assert "logistic" in found["federated"]  # tables large enough for Newton's method


def killed_at_any_time(folder: Path, kills: int, seed: int, silos: list[str]) -> dict[str, Any]:
    """The study of processes of which one after another is killed, at moments drawn from a seed."""
    file, chance = write_study_file(folder, silos, HEART, TINY), random.Random(seed)
    with fleet(folder) as processes:
        coordinator, url = processes.serve(file, "--out", folder / "rest")
        members = {name: joined(processes, url, name) for name in silos}
        for _ in range(kills):
            time.sleep(chance.uniform(0.2, 3.0))
            if not coordinator.process.is_alive():
                break
            name = chance.choice(["", *silos])
            if name:
                members[name].kill()
                members[name] = joined(processes, url, name)
            else:
                coordinator.kill()
                port = int(url.rpartition(":")[2])
                coordinator, _ = processes.serve(file, "--out", folder / "rest", port=port)
        assert coordinator.ended(400) == 0, coordinator.said
        for one in members.values():
            assert one.ended() == 0, one.said
    found: dict[str, Any] = json.loads((folder / "rest/study.json").read_text())
    return found


def test_a_study_survives_the_end_of_any_process(tmp_path: Path) -> None:
    silos = write_hospitals(tmp_path)
    found = killed_at_any_time(tmp_path, 5, 7, silos)
    assert_same_study(studied_locally(tmp_path, silos, HEART, TINY), found)


def test_the_page_stays_after_a_study_until_somebody_stops_it(tmp_path: Path) -> None:
    silos = write_hospitals(tmp_path)[:3]
    settings = TINY | {"algorithms": ["fedsgd"], "rounds": 2, "references": False}
    with fleet(tmp_path) as processes:
        file = write_study_file(tmp_path, silos, HEART, settings)
        _, url = processes.serve(file, "--out", tmp_path / "rest", "--stay")
        members = [joined(processes, url, name) for name in silos]
        assert [one.ended() for one in members] == [0, 0, 0]
        status = httpx.get(f"{url}/v1/status").json()
        assert (status["outcome"], status["seconds_left"]) == ("complete", None)
        assert (tmp_path / "rest/report.html").exists()


@pytest.mark.long
def test_thirty_kills_in_a_study_of_five_silos_change_nothing(tmp_path: Path) -> None:
    silos = write_hospitals(tmp_path, parts=5)
    for number in range(6):
        part = tmp_path / str(number)
        part.mkdir()
        write_hospitals(part, parts=5)
        found = killed_at_any_time(part, 5, number, silos)
        assert_same_study(studied_locally(part, silos, HEART, TINY), found)


def test_without_a_silo_that_left_it_is_the_study_of_the_others(tmp_path: Path) -> None:
    silos = write_hospitals(tmp_path)
    file = write_study_file(tmp_path, silos, HEART, TINY | {"on_lost": "continue"})
    with fleet(tmp_path) as processes:
        coordinator, url = processes.serve(file, "--out", tmp_path / "rest", "--round-timeout", "3")
        members = [joined(processes, url, name) for name in silos]
        members[-1].wait_until("joined the study")
        members[-1].kill()
        assert coordinator.ended(400) == 0, coordinator.said
        assert [one.ended() for one in members[:-1]] == [0, 0, 0]
    found = json.loads((tmp_path / "rest/study.json").read_text())
    assert_same_study(studied_locally(tmp_path, silos[:-1], HEART, TINY), found)
    parts = json.loads((tmp_path / "rest/participation.json").read_text())
    assert parts[silos[-1]]["left"] is not None
    assert parts[silos[0]]["left"] is None
    assert any("left the study" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--secure"], "secure sums would hide nothing"),
        (["--algorithm", "fedavg"], "a study chooses this itself"),
        (["--set", "study.rounds=0"], "study.rounds"),
        (["--set", "study.on_lost=never"], "neither 'wait' nor 'continue'"),
        (["--set", "study.sensitivity=true"], "needs the tables at one place"),
    ],
)
def test_what_a_study_does_not_take_is_refused_in_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, refusal: Refusal
) -> None:
    file = write_study_file(tmp_path, ["a", "b"], HEART, TINY)
    assert sentence in refusal("serve", file, "--insecure", "--port", "0", "--out", tmp_path / "run", *words)
