"""A restart continues the run of its own launch and no other; SLURM's variables are read like torchrun's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command import Refusal, fedilc

from fedilc.runtimes.torchrun import (
    claim,
    first_host,
    is_claimed,
    launch_name,
    started_as_group,
    with_slurm,
)
from fedilc.storage.run_folder import RunFolder

SMALL = ("run", "color-digits", "--set", "model.hidden=[4]")


def started_by_torchrun(monkeypatch: pytest.MonkeyPatch, job: str, attempt: int) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))


def done(folder: Path) -> int:
    return len(RunFolder(folder).history())


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_restart_goes_on_with_its_own_run_and_refuses_an_older_one(
    monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    started_by_torchrun(monkeypatch, "first", 0)
    fedilc(*SMALL, "--rounds", 2, "--out", "o")
    started_by_torchrun(monkeypatch, "second", 1)
    assert "already holds a run" in refusal(*SMALL, "--rounds", 3, "--out", "o")
    assert done(Path("o")) == 2
    started_by_torchrun(monkeypatch, "first", 1)
    fedilc(*SMALL, "--rounds", 3, "--out", "o")
    assert done(Path("o")) == 3


def test_without_a_folder_given_a_restart_finds_its_own_or_takes_a_free_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = Path("runs/color-digits")
    started_by_torchrun(monkeypatch, "first", 0)
    fedilc(*SMALL, "--rounds", 1, "-a", "fedsgd")
    started_by_torchrun(monkeypatch, "second", 1)
    fedilc(*SMALL, "--rounds", 1, "-a", "fedsgd")
    started_by_torchrun(monkeypatch, "second", 2)
    fedilc(*SMALL, "--rounds", 2, "-a", "fedsgd")
    assert [done(runs / name) for name in ("fedsgd-seed0", "fedsgd-seed0-2")] == [1, 2]
    started_by_torchrun(monkeypatch, "first", 1)
    fedilc(*SMALL, "--rounds", 3, "-a", "fedsgd")
    assert [done(runs / name) for name in ("fedsgd-seed0", "fedsgd-seed0-2")] == [3, 2]
    assert not (runs / "fedsgd-seed0-3").exists()


def test_a_launch_of_the_same_name_that_was_refused_is_refused_again_after_its_restart(
    monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    started_by_torchrun(monkeypatch, "nightly", 0)
    fedilc(*SMALL, "--rounds", 1, "--out", "o")
    for attempt in range(2):
        started_by_torchrun(monkeypatch, "nightly", attempt)
        assert "already holds a run" in refusal(*SMALL, "--rounds", 2, "--out", "o")


def test_of_all_algorithms_a_restart_goes_on_where_the_first_attempt_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started_by_torchrun(monkeypatch, "first", 0)
    fedilc(*SMALL, "--rounds", 1, "-a", "all", "--out", "o")
    for file in Path("o/geometric").iterdir():
        file.unlink()
    started_by_torchrun(monkeypatch, "first", 1)
    fedilc(*SMALL, "--rounds", 2, "-a", "all", "--out", "o")
    assert [done(Path("o") / name) for name in ("fedsgd", "geometric", "fishr-inter-geo")] == [2, 2, 2]


def test_launches_without_an_id_are_told_apart_by_their_torchrun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started_by_torchrun(monkeypatch, "none", 1)
    claim(tmp_path)
    assert is_claimed(tmp_path)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert not is_claimed(tmp_path)


def test_without_torchrun_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert launch_name() is None
    claim(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not is_claimed(tmp_path)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node[07-09,12],other3", "node07"),
        ("gpu1,gpu2", "gpu1"),
        ("gpu-a-[3,5]", "gpu-a-3"),
        ("one.example.org", "one.example.org"),
        ("", "localhost"),
    ],
)
def test_the_first_host_of_a_slurm_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_slurms_variables_become_those_of_torchrun_which_go_before() -> None:
    slurm = {
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "8",
        "SLURM_STEP_NODELIST": "n[1-4]",
        "SLURM_JOB_ID": "70123",
    }
    assert with_slurm(slurm) == slurm | {
        "RANK": "3",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "30123",
    }
    under_torchrun = slurm | {"RANK": "0", "WORLD_SIZE": "2"}
    assert with_slurm(under_torchrun) == under_torchrun


@pytest.mark.parametrize(
    ("variables", "several"),
    [
        ({"SLURM_NTASKS": "2"}, False),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "ENVIRONMENT": "BATCH"}, False),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "ENVIRONMENT": "BATCH", "SLURM_STEP_ID": "0"}, True),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0"}, True),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "WORLD_SIZE": "1"}, False),
    ],
)
def test_a_command_in_the_shell_of_an_allocation_is_alone(
    variables: dict[str, str], several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_ID", "ENVIRONMENT"):
        monkeypatch.delenv(key, raising=False)
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    assert started_as_group() == several
