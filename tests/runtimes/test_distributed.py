"""The distributed runtime on real processes: it equals the local one, and outlives a rank that is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import rank_worker
import torch
from command import one_sentence
from fleets import Fleet, Member, fleet, forked
from hypothesis import given
from hypothesis import strategies as st
from needs import needs_proc
from ports import free_port
from safetensors.torch import load_file
from torch import Tensor

from fedilc import algorithms
from fedilc.config import Options
from fedilc.data.silo_store import SiloStore
from fedilc.errors import ConfigError, DataError, FedILCWarning
from fedilc.evaluation import measure
from fedilc.federation import Program
from fedilc.gradients import Loss, ModelRunner
from fedilc.runtimes.distributed import DistributedRuntime, Group, joined_group
from fedilc.runtimes.torchrun import started_as_group

pytestmark = pytest.mark.slow

PATIENCE = 240
CLEAN = {
    key: value
    for key, value in os.environ.items()
    if not key.startswith(("SLURM_", "TORCHELASTIC_", "MASTER_")) and key not in ("RANK", "WORLD_SIZE")
} | {"OMP_NUM_THREADS": "1"}
RUN = ["run", "color-digits", "--rounds", "40", "--set", "model.hidden=[8]"]


def torchrun(ranks: int, *words: str) -> list[str]:
    port = f"--master-port={free_port()}"
    return [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", port, *words]


@contextlib.contextmanager
def started(command: list[str], log: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes into `log` and does not outlive the test."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=CLEAN | more, stdout=file, stderr=file)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)


def rounds_done(out: Path) -> int:
    file = out / "timing.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def assert_same_bits(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Mapping[str, Tensor]]:
    """The weights of the local runtime after ten rounds, by algorithm."""
    return {name: rank_worker.weights_of(name)[0] for name in rank_worker.NAMES}


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids=lambda ranks: f"{ranks} ranks")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """How many ranks ran `rank_worker`, and the folder they left."""
    out = tmp_path_factory.mktemp(f"ranks-{request.param}")
    rank_worker.weights_of(rank_worker.RESUMED, 5, out=out / "begun")
    rank_worker.weights_of(rank_worker.RESUMED, 5, rank_worker.IMAGES, out=out / "images")
    port = free_port()
    processes = [forked(rank_worker.work, rank, request.param, port, out) for rank in range(request.param)]
    for process in processes:
        process.join(PATIENCE)
        assert process.exitcode == 0
    return request.param, out


def weights_in(folder: Path, rank: int, title: str) -> dict[str, Tensor]:
    found = load_file(folder / f"weights-{rank}.safetensors")
    return {key.removeprefix(f"{title}/"): t for key, t in found.items() if key.startswith(f"{title}/")}


@pytest.mark.parametrize("algorithm", rank_worker.NAMES)
def test_every_rank_has_the_bits_of_the_local_runtime(
    ranks: tuple[int, Path], alone: dict[str, Mapping[str, Tensor]], algorithm: str
) -> None:
    size, folder = ranks
    for rank in range(size):
        assert_same_bits(weights_in(folder, rank, algorithm), alone[algorithm])


def test_what_silos_of_any_rank_remember_is_there_after_a_resume(
    ranks: tuple[int, Path], alone: dict[str, Mapping[str, Tensor]]
) -> None:
    _, folder = ranks
    assert len(list((folder / "scaffold" / "silo-state").glob("*-previous.safetensors"))) == 6
    for name, tensor in weights_in(folder, 0, "remembered").items():
        assert torch.equal(tensor, alone["scaffold"][name])


def test_a_run_goes_on_with_another_number_of_ranks(
    ranks: tuple[int, Path], alone: dict[str, Mapping[str, Tensor]]
) -> None:
    size, folder = ranks
    for rank in range(size):
        assert_same_bits(weights_in(folder, rank, "resumed"), alone[rank_worker.RESUMED])
    weights, history = rank_worker.weights_of(rank_worker.RESUMED, 10, out=folder / "half", resume=True)
    assert_same_bits(weights, alone[rank_worker.RESUMED])
    assert [record["round"] for record in history] == list(range(1, 11))


def test_every_rank_draws_the_silos_that_the_local_runtime_draws(ranks: tuple[int, Path]) -> None:
    """Three silos of six: with four ranks, some have none in a round."""
    size, folder = ranks
    weights, history = rank_worker.weights_of(rank_worker.RESUMED, silos_per_round=3)
    for rank in range(size):
        drawn = json.loads((folder / f"drawn-{rank}.json").read_text())
        assert drawn == [list(record["silos"]) for record in history]
        assert_same_bits(weights_in(folder, rank, "sampled"), weights)


def test_silos_that_count_by_their_examples_do_so_on_every_rank(ranks: tuple[int, Path]) -> None:
    size, folder = ranks
    weights, _ = rank_worker.weights_of(**rank_worker.WEIGHTED)
    equally, _ = rank_worker.weights_of(**rank_worker.WEIGHTED | {"silo_weights": "equal"})
    assert any(not torch.allclose(weights[name], equally[name], rtol=1e-3) for name in weights)
    for rank in range(size):
        assert_same_bits(weights_in(folder, rank, "weighted"), weights)


def test_a_silo_whose_answers_lead_to_infinity_is_set_aside_by_every_rank(ranks: tuple[int, Path]) -> None:
    size, folder = ranks
    with (
        pytest.warns(FedILCWarning, match="silo 'silo-1' .* stands out, but still counts"),
        pytest.warns(FedILCWarning, match="continued without silo 'silo-1'"),
    ):
        weights, _ = rank_worker.weights_of(**rank_worker.OUTLYING)
    for rank in range(size):
        assert_same_bits(weights_in(folder, rank, "outlying"), weights)


def test_a_convolutional_run_goes_on_with_another_number_of_ranks(ranks: tuple[int, Path]) -> None:
    size, folder = ranks
    expected, _ = rank_worker.weights_of(rank_worker.RESUMED, 10, rank_worker.IMAGES)
    for rank in range(size):
        assert_same_bits(weights_in(folder, rank, "images"), expected)


def test_all_ranks_begin_with_the_weights_of_the_first(
    ranks: tuple[int, Path], alone: dict[str, Mapping[str, Tensor]]
) -> None:
    size, folder = ranks
    for rank in range(size):
        assert_same_bits(weights_in(folder, rank, "first"), alone[rank_worker.RESUMED])


def test_the_test_set_measured_in_parts_is_that_of_the_local_runtime(ranks: tuple[int, Path]) -> None:
    _, folder = ranks
    _, expected = rank_worker.weights_of(rank_worker.RESUMED, 5)
    lines = (folder / "half" / "history.jsonl").read_text().splitlines()[:5]
    for line, record in zip(lines, expected, strict=True):
        found = {key: value for key, value in json.loads(line).items() if key.startswith("test_")}
        expected_here = {key: record[key] for key in found}
        unknown = {key for key, value in expected_here.items() if value is None}  # too few events
        assert unknown == {key for key, value in found.items() if value is None}
        assert "test_loss" in found.keys() - unknown
        for key in found.keys() - unknown:
            assert found[key] == pytest.approx(expected_here[key], rel=1e-6)


def runtime_of(group: Group, store: SiloStore) -> DistributedRuntime:
    model, loss = rank_worker.network(), Loss("binary")
    program = Program.of(algorithms.get("fedsgd"), "binary", Options(rounds=1, learning_rate=0.1), model)
    return DistributedRuntime(group, store, ModelRunner(model, loss), program, partial(measure, loss))


def test_a_rank_lets_go_of_the_silos_of_the_others() -> None:
    store = SiloStore.of(rank_worker.federation())
    runtime = runtime_of(Group(1, 2), store)
    own = Group(1, 2).share(dict(zip(store.silos, rank_worker.SIZES, strict=True)))
    assert 0 < len(own) < len(store.silos)
    assert runtime.silos == store.silos
    for one in (runtime.store, store):
        assert one.held is not None
        assert set(one.held) == set(own)
    with pytest.raises(DataError, match=r"is not in memory here; another rank"):
        runtime.store.open(next(name for name in runtime.silos if name not in own))


@pytest.mark.parametrize("rank", [0, 6])
def test_more_ranks_than_silos_are_refused_by_every_rank(rank: int) -> None:
    with pytest.raises(ConfigError, match=r"^there are 7 ranks and 6 silos; start no more ranks than silos$"):
        runtime_of(Group(rank, 7), SiloStore.of(rank_worker.federation()))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_silos_are_dealt_once_each_and_evenly(sizes: list[int], ranks: int) -> None:
    named = {f"s{i}": size for i, size in enumerate(sizes)}
    shares = [Group(rank, ranks).share(named) for rank in range(ranks)]
    assert sorted(name for share in shares for name in share) == sorted(named)
    for share in shares:
        assert list(share) == [name for name in named if name in share]
    loads = [sum(named[name] for name in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes)
    assert len(sizes) < ranks or all(shares)


def test_one_of_several_without_an_address_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("MASTER_ADDR", "MASTER_PORT", "RANK"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert started_as_group()
    with pytest.raises(ConfigError, match=r"RANK is not set; start them with torchrun"), joined_group():
        pass


def second_rank(launcher: int) -> list[int]:
    """The process of the second rank, if a launcher has it."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"RANK=1" in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    ]


def test_what_the_first_rank_refuses_is_said_once_and_the_others_point_to_it(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    kept = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    with fleet(tmp_path) as commands:
        first, second = (
            commands.start(
                *RUN, "--out", tmp_path, **rank_worker.told_by_torchrun(rank, 2, store.port), **kept
            )
            for rank in range(2)
        )
        assert first.ended() == second.ended() == 2
        assert "already holds a run" in one_sentence(first.said)
        assert one_sentence(second.said) == "rank 0 ended the run; its own message says why"


def test_two_ranks_train_each_of_two_algorithms_with_ones_own_network_as_one_process_does(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef build(): return nn.Sequential(nn.Flatten(), nn.Linear(128, 1))\n"
    )
    words = (
        "run",
        "color-digits",
        "--rounds",
        2,
        "-a",
        "fedsgd",
        "-a",
        "fishr-inter-geo",
        "--model",
        "mine:build",
        "--out",
    )
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    kept = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    with fleet(tmp_path) as commands:
        alone = commands.start(*words, tmp_path / "alone")
        ranks = [
            commands.start(
                *words, tmp_path / "both", **rank_worker.told_by_torchrun(rank, 2, store.port), **kept
            )
            for rank in range(2)
        ]
        for one in (alone, *ranks):
            assert one.ended() == 0, one.said
    for name in ("fedsgd", "fishr-inter-geo"):
        left, right = (
            load_file(tmp_path / out / name / "checkpoint.safetensors") for out in ("alone", "both")
        )
        for key, tensor in left.items():
            torch.testing.assert_close(right[key], tensor, rtol=1e-4, atol=1e-6)


@needs_proc
def test_a_rank_killed_in_a_round_is_started_again_and_the_run_is_the_undisturbed_one(tmp_path: Path) -> None:
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    with fleet(tmp_path) as commands:
        for rank in ranks_under_slurm(commands, "--out", calm):
            assert rank.ended() == 0, rank.said
    log = tmp_path / "log"
    with started(
        torchrun(2, "--max-restarts=1", "-m", "fedilc", *RUN, "--out", str(disturbed)), log
    ) as process:
        wait_for(lambda: rounds_done(disturbed) >= 5 or process.poll() is not None)
        (killed,) = second_rank(process.pid)
        os.kill(killed, signal.SIGKILL)
        assert process.wait(PATIENCE) == 0, log.read_text()
    assert "Traceback" not in log.read_text()
    assert "continuing after round" in log.read_text()
    for file in ("history.jsonl", "checkpoint.safetensors"):
        assert (disturbed / file).read_bytes() == (calm / file).read_bytes()


@pytest.mark.long
@needs_proc
def test_machines_that_count_their_restarts_apart_meet_again_after_one_lost_its_rank(tmp_path: Path) -> None:
    out, port = tmp_path / "run", free_port()
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--nnodes=2", "--max-restarts=2"]
    command = torchrun(1, *meeting, "-m", "fedilc", *RUN, "--out", str(out))
    with started(command, tmp_path / "a") as one, started(command, tmp_path / "b") as other:
        wait_for(lambda: rounds_done(out) >= 3 or one.poll() is not None)
        (killed,) = [rank for each in (one, other) for rank in second_rank(each.pid)]
        os.kill(killed, signal.SIGKILL)
        assert [each.wait(PATIENCE) for each in (one, other)] == [0, 0], (tmp_path / "a").read_text()
    assert rounds_done(out) == 40


def ranks_under_slurm(commands: Fleet, *words: object) -> list[Member]:
    """The command as two ranks that know of each other what srun tells them."""
    job = {"SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": str(free_port() - 20_000)}
    return [commands.start(*RUN, *words, **job, SLURM_PROCID=str(rank)) for rank in range(2)]


def test_under_slurm_a_lost_rank_ends_the_other_with_one_sentence_and_resume_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with fleet(tmp_path) as commands:
        first, second = ranks_under_slurm(commands, "--out", out)
        wait_for(lambda: rounds_done(out) >= 2 or not first.process.is_alive())
        second.kill()
        assert first.ended() == 2
        *_, last = first.said.splitlines()
        assert last.startswith("fedilc: another rank is gone or cannot be reached (")
        assert last.endswith("it continues after the last completed round")
        assert "Traceback" not in first.said
        done = rounds_done(out)
        assert commands.start(*RUN, "--out", out, "--resume").ended() == 0
    assert 2 <= done < rounds_done(out) == 40
