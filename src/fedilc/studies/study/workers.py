"""The tasks of a study done by worker processes, each of which does many: starting one costs seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedilc.errors import FedILCError
from fedilc.studies.study.data import StudyData
from fedilc.studies.study.tasks import Task, perform
from fedilc.studies.study.training import StopRunError

Done = Callable[[Task, float], None]
Perform = Callable[[Mapping[Path, Task], Done], None]


class WorkerError(FedILCError):
    """A worker process ended without an error message."""


@contextmanager
def workers(data: StudyData, jobs: int) -> Iterator[Perform]:
    """Yield a function that does tasks, keeps each result in its file and reports each as it is done.

    With one job they are done in this process. When the block ends early, by Ctrl-C or an error, runs under
    way stop after their round and are not kept.
    """
    if jobs == 1:
        yield lambda tasks, done: _one_by_one(tasks, data, done)
        return
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    threads = max(1, (os.cpu_count() or 1) // jobs)
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(data, stop, threads))
    try:
        yield lambda tasks, done: _side_by_side(pool, tasks, done, jobs)
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _one_by_one(tasks: Mapping[Path, Task], data: StudyData, done: Done) -> None:
    import torch

    threads = torch.get_num_threads()
    if data.is_table:  # matrices of a few thousand numbers: threads cost more than they give
        torch.set_num_threads(1)
    try:
        for path, task in tasks.items():
            done(task, perform(task, data, path, lambda: False))
    finally:
        torch.set_num_threads(threads)


def _side_by_side(pool: ProcessPoolExecutor, tasks: Mapping[Path, Task], done: Done, jobs: int) -> None:
    """Keep a few tasks waiting per worker; report each as it is done."""
    left, running = list(tasks.items()), dict[Future[float], Task]()
    try:
        while left or running:
            while left and len(running) < 2 * jobs:
                path, task = left.pop(0)
                running[pool.submit(_perform, task, path)] = task
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                done(running.pop(future), future.result())
    except BrokenProcessPool as error:
        raise WorkerError(
            "a worker process of the study ended, perhaps because memory ran out; run the "
            "same command to continue; `jobs=1` needs the least memory"
        ) from error


_worker: dict[str, Any] = {}


def _begin(data: StudyData, stop: Any, threads: int) -> None:
    """Prepare a worker; Ctrl-C reaches the whole process group, and the parent decides what follows."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    _worker.update(data=data, stop=stop)


def _perform(task: Task, path: Path) -> float:
    try:
        return perform(task, _worker["data"], path, _worker["stop"].is_set)
    except StopRunError:
        return 0.0


def usual_jobs() -> int:
    """Return how many workers suit this machine: one per core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
