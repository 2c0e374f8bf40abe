"""The engine: jobs side by side in worker processes, what is left of them, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from counting import Counting

from fedilc.errors import StoppedError
from fedilc.studies import worker_pool
from fedilc.studies.worker_pool import JobError, Work, cores, working
from processes import wait_until_empty

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("workers", [1, 2])
def test_every_job_is_done_once_and_only_what_is_left_is_done_again(tmp_path: Path, workers: int) -> None:
    jobs = [Counting.of(tmp_path, f"a{number}", cost=2) for number in range(5)]
    jobs[0].file.write_text('{"process": 0}\n')
    for first in (True, False):
        with working(workers, "units", shared="data") as work:
            work.do("all", jobs)
        assert (work.done(), work.total(), work.seconds_left()) == (10, 10, 0.0 if first else None)
    lines = [line for job in jobs for line in job.lines()]
    assert len(lines) == 10
    assert lines[0] == {"process": 0}
    assert {line["shared"] for line in lines[1:]} == {"data"}
    here = {line["process"] == os.getpid() for line in lines[1:]}
    assert here == {workers == 1}


def test_units_are_counted_while_jobs_run_and_the_time_left_follows_what_each_kind_took(
    tmp_path: Path,
) -> None:
    seen: list[tuple[int, int, float | None]] = []

    def show(work: Work) -> None:
        seen.append((work.done(), work.total(), work.seconds_left()))

    slow, fast = (Counting.of(tmp_path, name, 3, pause) for name, pause in (("slow", 0.4), ("fast", 0.1)))
    with working(1, "units", show) as work:
        work.later.update(slow=3, fast=30)
        work.do("first", [slow])
        work.do("second", [fast])
    assert seen[0] == (0, 33, None)
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert {done for done, _, _ in seen} >= {0, 3, 6}
    assert len({done for done, _, _ in seen} & {1, 2}) > 0
    assert {total for _, total, _ in seen} == {33}
    done, _, left = seen[-1]
    assert done == 6
    assert left is not None
    assert 27 * 0.1 <= left < 27 * 0.2


def test_a_job_that_fails_is_named_with_its_reason_and_the_others_are_completed(tmp_path: Path) -> None:
    bad, good = Counting.of(tmp_path, "bad", 2, fault="error"), Counting.of(tmp_path, "good", 2)
    for workers in (1, 2):
        with (
            pytest.raises(JobError, match=rf"^the run bad in {tmp_path} failed: the silo is empty; fill it$"),
            working(workers, "units") as work,
        ):
            work.do("all", [bad, good])
        assert list(work.failed) == [bad]
        assert good.finished()
        bad.file.unlink()


def test_a_bug_in_a_job_ends_the_work_with_its_traceback(tmp_path: Path) -> None:
    jobs = [Counting.of(tmp_path, "bug", fault="bug"), Counting.of(tmp_path, "long", 100, pause=0.1)]
    with pytest.raises(ZeroDivisionError), working(2, "units") as work:
        work.do("all", jobs)
    assert jobs[1].done() < 100


def test_a_killed_worker_is_one_sentence_and_the_rest_is_done_afterwards(tmp_path: Path) -> None:
    jobs = [Counting.of(tmp_path, "killed", 2, fault="kill"), Counting.of(tmp_path, "other", 20, pause=0.1)]
    with (
        pytest.raises(
            JobError, match=r"^a worker process ended, perhaps because memory ran out; run the same"
        ),
        working(2, "units") as work,
    ):
        work.do("all", jobs)
    assert 1 <= sum(job.done() for job in jobs) < 22
    again = [Counting.of(tmp_path, job.label, job.cost) for job in jobs]
    with working(2, "units") as work:
        work.do("all", again)
    assert [job.done() for job in again] == [2, 20]


@pytest.mark.parametrize(("given", "own"), [("3", 3), (None, max(1, cores() // 2))])
def test_workers_have_the_threads_that_were_given_or_else_their_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, own: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    job = Counting.of(tmp_path, "job")
    with working(2, "units") as work:
        work.do("all", [job])
    assert [line["threads"] for line in job.lines()] == [own]


def test_one_job_at_a_time_has_the_threads_that_were_given_for_as_long_as_it_runs(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    job = Counting.of(tmp_path, "job")
    with working(1, "units", threads=2) as work:
        work.do("all", [job])
    assert [line["threads"] for line in job.lines()] == [2]
    assert torch.get_num_threads() == before


SCRIPT = """
import sys
from pathlib import Path
from counting import Counting
from processes import wait_until_empty
from fedilc.studies.worker_pool import working

if __name__ == "__main__":
    jobs = [Counting.of(Path(sys.argv[1]), name, 200, 0.05) for name in ("a", "b", "c")]
    with working(int(sys.argv[2]), "units") as work:
        print("begun", flush=True)
        work.do("all", jobs)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "helpers"))
    return [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]


@pytest.mark.parametrize(
    ("workers", "after", "number"),
    [
        ("1", "a", signal.SIGINT),
        ("2", "a", signal.SIGINT),
        ("2", "begun", signal.SIGINT),
        ("2", "a", signal.SIGKILL),
    ],
    ids=["ctrl-c", "ctrl-c with workers", "ctrl-c while workers start", "killed"],
)
def test_ctrl_c_and_a_kill_keep_what_is_done_and_leave_no_process(
    command: list[str], tmp_path: Path, workers: str, after: str, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [*command, workers], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    deadline = time.monotonic() + 60
    while after == "a" and not (tmp_path / "a").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    if number == signal.SIGKILL:
        process.kill()
    else:  # as a terminal does: all processes of the group
        os.killpg(process.pid, number)
    _, said = process.communicate(timeout=60)
    wait_until_empty(process.pid)
    done = sum(Counting.of(tmp_path, name).done() for name in ("a", "b", "c"))
    assert done < 400
    if number == signal.SIGINT:
        assert said.count("Traceback") == 1  # that of the script, which does not catch the error
        assert said.splitlines()[-1] == (
            f"{StoppedError.__module__}.StoppedError: stopped with {done} of 600 units done; run the same "
            "command to continue"
        )


def test_no_more_workers_are_started_than_fit_into_thefree_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "cores", lambda: 8)
    table = 40 * 2**20
    each = worker_pool.WORKER_BYTES + worker_pool.COPIES * table
    for free, expected in ((None, 8), (0, 1), (3 * each + 1, 3), (100 * each, 8)):
        monkeypatch.setattr(worker_pool, "free_memory", lambda free=free: free)
        assert worker_pool.workers_that_fit(table) == expected


def test_thefree_memory_is_that_of_this_machine() -> None:
    found = worker_pool.free_memory()
    assert found is None or 2**20 < found < 2**50
