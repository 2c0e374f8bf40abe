"""Do many jobs, several at a time in worker processes, with progress and the time left.

A job keeps its results in files, so that the same command does what is left after Ctrl-C, an error or a kill.
"""

from __future__ import annotations

import _thread
import multiprocessing
import os
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from threading import Event, RLock, Thread
from typing import Any

from fedilc.errors import FedILCError, StoppedError

POLL_SECONDS = 0.5
MAX_STOP_SECONDS = 60.0
WORKER_BYTES, COPIES = 300 * 2**20, 4  # as benchmarks/large_table.py measures them


class JobError(FedILCError):
    """A job ended in an error and the others were completed, or a worker process was killed."""


@dataclass(frozen=True, eq=False)
class Job(ABC):
    """Work that one process does, with files as its result; a worker gets a pickled copy.

    Attributes:
        label: the name in progress lines and errors.
        kind: jobs of one kind take about the same time per unit of cost.
        folder: where the results are.
        cost: the number of units, such as rounds.
    """

    label: str
    kind: str
    folder: Path
    cost: int

    @abstractmethod
    def finished(self) -> bool:
        """Return whether nothing is left to do; raise if the folder holds the results of another job."""

    @abstractmethod
    def perform(self, shared: Any) -> None:
        """Do what is left, and keep the results; `shared` is what all jobs have in common."""

    def done(self) -> int:
        """Return how many units are complete, also while the job runs."""
        return 0

    def seconds(self) -> list[float]:
        """Return what single units took; if nothing, the whole job is measured."""
        return []


Outcome = tuple[float, str | None]  # the seconds that a job took, and the reason if it failed
Submit = Callable[[Job], Future[Outcome]]
Show = Callable[["Work"], None]


@dataclass(eq=False)
class Work:
    """The state of all jobs, and what does them.

    Attributes:
        workers: how many jobs run at a time.
        unit: the name of the units of cost, for people.
        show: called after every change and every half second, perhaps by another thread.
        label: what the current jobs are for.
        later: by kind, the units of jobs that are expected but not known yet.
        running: the jobs under way.
        failed: by job, the reason.
        submit: starts or does a job.
    """

    workers: int
    unit: str
    show: Show = lambda _: None
    label: str = ""
    later: Counter[str] = field(default_factory=Counter)
    running: list[Job] = field(default_factory=list)
    failed: dict[Job, str] = field(default_factory=dict)
    _units: dict[Job, int] = field(default_factory=dict)
    _seconds: dict[Job, list[float]] = field(default_factory=dict)
    _lock: RLock = field(default_factory=RLock)
    submit: Submit = field(init=False)

    def done(self) -> int:
        """Return the number of complete units."""
        return sum(self._units.values())

    def total(self) -> int:
        """Return the number of units of all jobs, known or expected."""
        return sum(job.cost for job in self._units) + self.later.total()

    def seconds_left(self) -> float | None:
        """Return about how long the rest takes, from what each kind took so far; None if nothing did."""
        measured: dict[str, list[float]] = {}
        for job, seconds in self._seconds.items():
            measured.setdefault(job.kind, []).extend(seconds)
        typical = {kind: fmean(seconds) for kind, seconds in measured.items() if seconds}
        if not typical:
            return None
        other = fmean(typical.values())
        units = {job: job.cost - done for job, done in self._units.items() if job not in self.failed}
        left = [number * typical.get(job.kind, other) for job, number in units.items()]
        later = sum(number * typical.get(kind, other) for kind, number in self.later.items())
        return max((sum(left) + later) / self.workers, max(left, default=0.0))

    def do(self, label: str, jobs: Sequence[Job]) -> None:
        """Do the jobs that are not finished; if some fail, complete the others, then raise the first one."""
        finished = {job: job.finished() for job in jobs}
        with self._lock:
            self.label = label
            for job in jobs:
                self.later -= Counter({job.kind: job.cost})  # never leaves less than nothing
                self._units[job] = job.cost if finished[job] else job.done()
                self._seconds[job] = job.seconds()
        self.refresh()
        left, running = [job for job in jobs if not finished[job]], dict[Future[Outcome], Job]()
        while left or running:
            while left and len(running) < self.workers:
                self.running.append(job := left.pop(0))
                running[self.submit(job)] = job
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                self._end(running.pop(future), *future.result())
        if self.failed:
            job, reason = next(iter(self.failed.items()))
            others = f" ({len(self.failed)} runs failed, this is the first)" if len(self.failed) > 1 else ""
            raise JobError(f"the run {job.label} in {job.folder} failed: {reason}{others}")

    def refresh(self) -> None:
        """Ask the running jobs how far they are, and show it."""
        with self._lock:
            for job in self.running:
                self._units[job] = min(job.done(), job.cost)
                self._seconds[job] = job.seconds()
            self.show(self)

    def _end(self, job: Job, seconds: float, reason: str | None) -> None:
        with self._lock:
            self.running.remove(job)
            self._seconds[job] = job.seconds() or [seconds / job.cost]
            if reason is None:
                self._units[job] = job.cost
            else:
                self.failed[job] = reason
        self.refresh()


@contextmanager
def working(
    workers: int, unit: str, show: Show = lambda _: None, *, shared: Any = None, threads: int | None = None
) -> Iterator[Work]:
    """Yield what does jobs, `workers` at a time: in this process if it is one, else in worker processes.

    `shared` is given to every job; workers get it once. A job has `threads`, or OMP_NUM_THREADS, or an equal
    share of the cores. If the block ends early, by Ctrl-C or an error, running jobs are interrupted.

    Raises:
        StoppedError: after Ctrl-C; it says how far the work is.
        JobError: if a job failed or a worker process was killed.
    """
    work = Work(workers, unit, show)
    begin = _in_this_process if workers == 1 else _in_workers
    try:
        with begin(workers, shared, threads) as work.submit, _refreshing(work):
            yield work
    except KeyboardInterrupt:
        work.refresh()
        raise StoppedError(
            f"stopped with {work.done()} of {work.total()} {unit} done; run the same command to continue"
        ) from None
    except BrokenProcessPool as error:
        raise JobError(
            "a worker process ended, perhaps because memory ran out; run the same command to continue; "
            "`jobs=1` needs the least memory"
        ) from error


@contextmanager
def _refreshing(work: Work) -> Iterator[None]:
    """Refresh from a thread of its own: this one does a job, or waits for one."""
    ended = Event()

    def repeat() -> None:
        while not ended.wait(POLL_SECONDS):
            work.refresh()

    thread = Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _in_this_process(_workers: int, shared: Any, threads: int | None) -> Iterator[Submit]:
    import torch

    def submit(job: Job) -> Future[Outcome]:
        future = Future[Outcome]()
        future.set_result(_perform(job, shared))
        return future

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield submit
    finally:
        torch.set_num_threads(before)


@contextmanager
def _in_workers(workers: int, shared: Any, threads: int | None) -> Iterator[Submit]:
    context = multiprocessing.get_context("spawn")
    stop = context.RawValue("b", 0)  # has no lock that a killed worker could hold for ever
    own = threads or int(os.environ.get("OMP_NUM_THREADS") or max(1, cores() // workers))
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(shared, stop, own))

    def submit(job: Job) -> Future[Outcome]:
        # Ctrl-C reaches all processes of a terminal. A worker that starts here inherits that it is blocked,
        # so that only _watch interrupts it; in this process it waits until the job is submitted.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return pool.submit(_perform_in_worker, job)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        yield submit
    finally:
        stop.value = 1
        pool.shutdown(cancel_futures=True)


_worker: dict[str, Any] = {}


def _begin(shared: Any, stop: Any, threads: int) -> None:
    """Prepare a worker process."""
    import torch

    torch.set_num_threads(threads)
    _worker.update(shared=shared, stop=stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_watch, args=(stop,), daemon=True).start()


def _watch(stop: Any) -> None:
    """Interrupt the worker's job when the parent stops; end the worker when the parent was killed."""
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive() and not stop.value:
        time.sleep(POLL_SECONDS)
    if stop.value:
        _thread.interrupt_main()
        time.sleep(MAX_STOP_SECONDS)
    os._exit(1)


def _perform_in_worker(job: Job) -> Outcome:
    """Do a job, which _watch may interrupt; between jobs, the executor ends the worker by itself."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if _worker["stop"].value:
            raise KeyboardInterrupt
        return _perform(job, _worker["shared"])
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _perform(job: Job, shared: Any) -> Outcome:
    started, reason = time.perf_counter(), None
    try:
        job.perform(shared)
    except FedILCError as error:
        reason = str(error)
    return time.perf_counter() - started, reason


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_that_fit(shared: int) -> int:
    """Return how many workers to start: one per core, or as many as the free memory holds, at least one.

    A worker has Python and its libraries, and its own copy, inputs and batches of what is shared.

    Args:
        shared: bytes of what all jobs have in common.
    """
    free = free_memory()
    each = WORKER_BYTES + COPIES * shared
    return cores() if free is None else max(1, min(cores(), free // each))


def free_memory() -> int | None:
    """Return the bytes that processes may still take; None if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
