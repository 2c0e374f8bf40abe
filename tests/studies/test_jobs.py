"""Many runs side by side: they finish, resume, fail and stop as promised."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from command import Refusal, fedilc

from fedilc.data.sources import Files
from fedilc.errors import CheckpointError, ConfigError, FedILCWarning, StoppedError
from fedilc.studies.jobs import RunJob, require_same_data, run_jobs
from fedilc.studies.worker_pool import JobError, Work, cores, working
from processes import wait_until_empty

pytestmark = pytest.mark.slow

TINY = ("rounds=2", "model.hidden=[4]", "data.flips=[0.2, 0.4]", "environment_size=100")


def job(folder: Path, *changes: str) -> RunJob:
    return RunJob.of("color-digits", (*TINY, *changes), folder)


def test_a_change_that_makes_no_sense_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rounds=0 is not valid"):
        job(tmp_path / "a", "rounds=0")
    assert not list(tmp_path.iterdir())


def test_jobs_run_side_by_side_and_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    jobs = [job(tmp_path / name, f"algorithm={name}") for name in ("fedsgd", "fishr-inter-geo")]
    seen: list[tuple[int, int]] = []
    run_jobs(jobs, 2, lambda work: seen.append((len(work.running), work.done())))
    assert all(each.finished() for each in jobs)
    assert max(running for running, _ in seen) == 2
    assert seen[-1] == (0, 4)
    assert run_jobs(jobs, 2) == []
    longer = [job(tmp_path / name, f"algorithm={name}", "rounds=3") for name in ("fedsgd",)]
    run_jobs(longer, 1)
    assert longer[0].done() == 3


def test_a_folder_with_other_settings_is_refused_by_name(tmp_path: Path) -> None:
    run_jobs([job(tmp_path / "a", "algorithm=fedsgd")], 1)
    with pytest.raises(CheckpointError, match=r"learning_rate was 0.001 there and is 0.5 here"):
        run_jobs([job(tmp_path / "a", "algorithm=fedsgd", "learning_rate=0.5")], 1)
    with pytest.raises(ConfigError, match="has 2 rounds, more than 1; choose"):
        run_jobs([job(tmp_path / "a", "algorithm=fedsgd", "rounds=1")], 1)


GOOD = "age,dose,label\n" + "".join(f"{row % 7},{row / 2},{row % 2}\n" for row in range(20))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """An experiment of one's own files."""
    for number, name in enumerate(("a", "b", "far"), 1):
        (tmp_path / f"{name}.csv").write_text(GOOD.replace(".", f".{number}"))
    path = tmp_path / "mine.toml"
    data = ["[data]", "source = 'files'", "silos = '[ab].csv'", "test = 'far.csv'", "[model]", "hidden = [4]"]
    path.write_text("\n".join(["rounds = 1", "learning_rate = 0.1", "algorithm = 'fedcurv'", *data]))
    return path


@pytest.mark.parametrize(
    ("file", "named"), [("b.csv", "silo 'b'"), ("far.csv", "the test set")], ids=["silo", "test set"]
)
def test_a_finished_campaign_over_data_that_changed_is_refused_before_anything_starts(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal, file: str, named: str
) -> None:
    words = ("sweep", "lambda", own, "--values", "0,1", "--seeds", 1, "--out", tmp_path / "out")
    fedilc(*words)
    fedilc(*words)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    (tmp_path / file).write_text(GOOD.replace(".", ".7"))
    said = refusal(*words[:4], "0,1,5", *words[5:])
    assert said == (
        f"the data of {named} differ from those of the run in "
        f"{tmp_path / 'out' / 'runs' / 'lambda-0' / 'seed-0'}; restore the data, or choose another folder"
    )
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_data_that_change_while_a_campaign_runs_are_noticed_before_its_table(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [RunJob.of(str(own), [f"penalty_weight={value}"], tmp_path / f"{value}") for value in (1, 2)]

    def change(work: Work) -> None:
        if work.done():
            (tmp_path / "a.csv").write_text(GOOD.replace(".", ".7"))

    with pytest.raises(
        CheckpointError, match=r"the data of silo 'a' differ from those of the run in .*2; restore"
    ):
        run_jobs(jobs, 1, change)


def test_what_is_odd_about_the_data_is_said_by_the_campaign_itself(own: Path, tmp_path: Path) -> None:
    rows = (tmp_path / "b.csv").read_text().splitlines()
    (tmp_path / "b.csv").write_text("\n".join([rows[0], *(row[:-1] + "1" for row in rows[1:])]))
    with pytest.warns(FedILCWarning, match="silo 'b'"):
        run_jobs([RunJob.of(str(own), [], tmp_path / "one")], 1)


def test_the_data_of_a_seed_are_built_once_and_beyond_the_first_only_if_a_run_has_begun(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    store = Files.store
    monkeypatch.setattr(
        Files, "store", lambda self, seed, folder: built.append(seed) or store(self, seed, folder)
    )
    jobs = [
        RunJob.of(str(own), [f"penalty_weight={value}", f"seed={seed}"], tmp_path / f"{value}-{seed}")
        for value in (1, 2)
        for seed in (0, 1)
    ]
    require_same_data(jobs, now=True)
    assert built == [0]
    run_jobs(jobs, 1)
    built.clear()
    run_jobs(jobs, 1)
    assert built == [0, 1]


def test_a_run_of_an_earlier_version_without_a_setting_had_its_default(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = RunJob.of(str(own), [], tmp_path / "one")
    run_jobs([one], 1)
    facts = json.loads((one.folder / "run.json").read_text())
    del facts["silos_per_round"], facts["data"]["in_memory"], facts["model"]["weights"], facts["digest"]
    (one.folder / "run.json").write_text(json.dumps(facts))
    assert run_jobs([one], 1) == []


def test_a_run_that_fails_is_named_with_its_reason_and_the_others_are_completed(tmp_path: Path) -> None:
    good, bad = (job(tmp_path / name, f"algorithm={name}") for name in ("fedsgd", "geometric"))
    run_jobs([bad], 1)
    for name in ("checkpoint.safetensors", "checkpoint-previous.safetensors"):
        (bad.folder / name).write_bytes(b"not a checkpoint")
    longer = job(bad.folder, "algorithm=geometric", "rounds=3")
    with pytest.raises(JobError, match=r"geometric seed 0 in .* failed: .*checkpoint.safetensors is damaged"):
        run_jobs([longer, good], 1)
    assert "checkpoint.safetensors is damaged" in (bad.folder / "log.txt").read_text()
    assert good.finished()


def test_the_time_left_of_a_resumed_campaign_follows_the_rounds_of_each_algorithm(tmp_path: Path) -> None:
    slow, fast = job(tmp_path / "s", "algorithm=fishr-intra-geo"), job(tmp_path / "f", "algorithm=fedsgd")
    seen: list[float | None] = []
    for each, seconds in ((slow, 10.0), (fast, 1.0)):
        each.folder.mkdir()
        (each.folder / "history.jsonl").write_text("{}\n")
        (each.folder / "timing.jsonl").write_text(json.dumps({"round": 1, "seconds": seconds}) + "\n")

    def show(work: Work) -> None:
        seen.append(work.seconds_left())
        raise StoppedError  # before a run begins

    with pytest.raises(StoppedError), working(1, "rounds", show) as work:
        work.do("all", [slow, fast])
    assert seen[0] == pytest.approx(11.0)


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_runs_of_a_campaign_are_no_ranks_and_have_the_bits_of_the_run_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    launched = {"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    names = ("fedavg", "fishr-inter-geo", "fishr-intra-geo")
    jobs = [job(tmp_path / "ours" / name, f"algorithm={name}") for name in names]
    run_jobs(jobs, at_a_time)
    for name in launched:
        monkeypatch.delenv(name)
    changes = [word for change in TINY for word in ("--set", change)]
    threads = str(torch.get_num_threads() if at_a_time == 1 else max(1, cores() // 2))
    for each, name in zip(jobs, names, strict=True):
        folder = tmp_path / "alone" / name
        words = [sys.executable, "-m", "fedilc", "run", "color-digits", *changes, "-a", name, "--out", folder]
        subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": threads}, check=True, capture_output=True)
        for file in ("history.jsonl", "checkpoint.safetensors"):
            assert (each.folder / file).read_bytes() == (folder / file).read_bytes()
        there, here = ({path.name for path in place.iterdir()} for place in (folder, each.folder))
        assert here == there - {"loss.png"} | {"log.txt"}


@pytest.fixture
def campaign(tmp_path: Path) -> list[str]:
    changes = ["--set", "model.hidden=[4]", "--set", "data.flips=[0.2, 0.4]"]
    names = ["-a", "fedsgd", "-a", "fishr-inter-geo"]
    words = ["reproduce", "color-digits", "--seeds", "1", "--rounds", "400", "--jobs", "2", *names, *changes]
    return [sys.executable, "-m", "fedilc", *words, "--out", str(tmp_path / "out")]


def test_an_interrupted_campaign_leaves_no_process_and_goes_on(campaign: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = subprocess.Popen(
        campaign, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(list(out.glob("runs/*/seed-0/checkpoint.safetensors"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does
    _, said = first.communicate(timeout=120)
    assert first.returncode == 130
    assert "run the same command to continue" in said
    assert "Traceback" not in said
    wait_until_empty(first.pid)
    done = [len(path.read_bytes().splitlines()) for path in out.glob("runs/*/seed-0/history.jsonl")]
    assert len(done) == 2
    assert all(0 < rounds <= 400 for rounds in done)
    assert min(done) < 400  # one may be through before the other has begun
    shorter = [word if word != "400" else str(max(done) + 1) for word in campaign]
    second = subprocess.run(shorter, capture_output=True, text=True, timeout=240, check=False)
    assert second.returncode == 0, second.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["fedsgd"]["last"]["round"]["seeds"] == [max(done) + 1]
    assert (out / "figures" / "curves.png").exists()
    assert (out / "tables.tex").exists()
