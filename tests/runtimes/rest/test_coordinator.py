"""A run folder has one coordinator at a time, and a finished one tells late silos that it is over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fleets import Fleet, Member, fleet
from ports import free_port

from fedilc.runtimes.remote.run import RemoteRun
from fedilc.runtimes.rest import coordinator
from fedilc.runtimes.rest.address import Address
from rest import remote

SILOS = ("north", "south")
EXPERIMENT = f"""
algorithm = "fishr-inter-geo"
rounds = 2
learning_rate = 0.01

[data]
source = "remote"
silos = {list(SILOS)}
inputs = [3]

[model]
hidden = [4]
"""
OWN = """
import torch
from fedilc import Silo

def make(name):
    x = torch.linspace(-1, 1, 60).reshape(20, 3).sin() * len(name)
    return Silo(name, x, (x.sum(1) > 0).float(), x[:5], (x[:5].sum(1) > 0).float())
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "study.toml").write_text(EXPERIMENT)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def join_all(processes: Fleet, url: str) -> list[Member]:
    return [processes.start("join", url, "--silo", name, "--provider", "own:make") for name in SILOS]


def test_a_second_coordinator_on_the_same_folder_is_refused_and_the_first_goes_on(study: Path) -> None:
    with fleet(study) as processes:
        first, url = processes.serve("study.toml", "--out", "run")
        second = processes.start("serve", "study.toml", "--out", "run", "--insecure", "--port", free_port())
        assert second.ended() == 2
        assert "run is in use by another process" in second.said
        assert second.said.count("\n") == 1
        members = join_all(processes, url)
        assert first.ended() == 0, first.said
        assert [member.ended() for member in members] == [0, 0]


def test_a_finished_run_started_again_tells_silos_that_it_is_over_and_changes_nothing(study: Path) -> None:
    with fleet(study) as processes:
        first, url = processes.serve("study.toml", "--out", "run")
        members = join_all(processes, url)
        assert first.ended() == 0, first.said
        assert [member.ended() for member in members] == [0, 0]
        kept = ("history.jsonl", "timing.jsonl", "run.json", "checkpoint.safetensors")
        before = [(study / "run" / name).read_bytes() for name in kept]
        second, url = processes.serve("study.toml", "--out", "run")
        assert "the run in run is complete" in second.wait_until("silos that still ask are told so").string
        late = join_all(processes, url)
        assert [member.ended() for member in late] == [0, 0]
        assert all("the run is over: complete" in member.said for member in late)
        assert second.ended() == 0, second.said
    assert [(study / "run" / name).read_bytes() for name in kept] == before


def test_more_rounds_go_on_where_a_finished_run_ended_and_other_settings_are_refused(study: Path) -> None:
    with fleet(study) as processes:
        for rounds in (2, 3):
            coordinator, url = processes.serve("study.toml", "--out", "run", "--rounds", rounds)
            members = join_all(processes, url)
            assert coordinator.ended() == 0, coordinator.said
            assert [member.ended() for member in members] == [0, 0]
        for option in ("--rounds=1", "--seed=1", "--wire=float16", "--algorithm=fedsgd"):
            refused = processes.start(
                "serve", "study.toml", "--out", "run", "--insecure", option, "--port", 0
            )
            assert refused.ended() == 2
            assert refused.said.startswith("fedilc: run ")
            assert refused.said.count("\n") == 1
    lines = (study / "run" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]


def test_a_run_folder_of_a_coordinator_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = remote()
    run = RemoteRun.of(settings, tmp_path)

    def stop(*_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(RemoteRun, "train", stop)
    with pytest.raises(InterruptedError):
        coordinator.serve(run, tmp_path / "run", Address(port=0, insecure=True), None)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
