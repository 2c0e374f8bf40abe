"""Many runs side by side: each in a process and a run folder of its own, which can be resumed."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedilc.config import Experiment, Options, read_experiment
from fedilc.config.section import Section
from fedilc.data.digest import weights_digest
from fedilc.data.outline import data_facts
from fedilc.errors import ConfigError, FedILCError, writing
from fedilc.federation import RunFolder
from fedilc.federation.json_files import complete_lines, json_bytes, parse_json
from fedilc.federation.program import make_parts
from fedilc.federation.run_identity import require_same

POLL_SECONDS = 0.5
MAX_STOP_SECONDS = 60.0


class JobError(FedILCError):
    """A run of a campaign ended in an error; the others were completed."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run: an experiment with changes, the run's folder, and the experiment's folder (`home`)."""

    experiment: str
    changes: tuple[str, ...]
    folder: Path
    settings: Experiment
    home: Path

    @classmethod
    def of(cls, experiment: str, changes: Sequence[str], folder: Path) -> Job:
        """Return the job of an experiment with changes; raise if a change is not valid."""
        return cls(experiment, tuple(changes), folder, *read_experiment(experiment, changes))

    @property
    def label(self) -> str:
        """Return the name of the run in progress lines and errors."""
        varied = any(change.startswith("penalty_weight=") for change in self.changes)
        weight = f" lambda {self.settings.penalty_weight:g}" if varied else ""
        return f"{self.settings.algorithm}{weight} seed {self.settings.seed}"

    def done(self) -> int:
        """Return the number of complete rounds."""
        return len(complete_lines(self.folder / "history.jsonl"))

    def finished(self) -> bool:
        """Return whether all rounds are complete; raise if the folder belongs to other settings."""
        self.require_same_settings()
        return self.done() >= self.settings.rounds

    def seconds(self) -> list[float]:
        """Return the time that each of the last 20 rounds took."""
        return [parse_json(line)["seconds"] for line in complete_lines(self.folder / "timing.jsonl")[-20:]]

    def begun(self) -> dict[str, Any] | None:
        """Return the facts in the folder's run.json, or None if the run has not begun.

        Version 0.1 called the setting `penalty_weight` `penalty`.
        """
        if not (self.folder / "run.json").exists():
            return None
        found = RunFolder(self.folder).settings()
        if isinstance(found.get("penalty"), float | int):
            return found | {"penalty": None, "penalty_weight": found["penalty"]}
        return found

    def require_same_settings(self) -> None:
        """Raise if the folder holds a run with other settings than this one asks for."""
        found = self.begun()
        if found is None:
            return
        wanted = self.settings.model_dump(mode="json")
        wanted["loss"] = wanted["loss"] or found.get("loss")  # none is that of the data, which run.json has
        network = {key: (found.get("model") or {}).get(key) for key in wanted["model"]}
        defaults = parse_json(json_bytes(_defaults(type(self.settings.data))))
        data = {key: defaults[key] for key in wanted["data"] if key in defaults} | (found.get("data") or {})
        held = {**_defaults(Options), **found, "data": data, "model": network}
        wanted["loss"] = wanted["loss"] or held["loss"]  # without one, a run records that of its data
        if "choices" in found:
            parts = make_parts(self.settings.parts(), found.get("loss", "binary"), self.settings)
            wanted["choices"] = parse_json(json_bytes(parts.describe()))
        keys = (*Options.model_fields, "algorithm", "data", "model", "choices")
        require_same(self.folder, *({key: facts.get(key) for key in keys} for facts in (held, wanted)))
        if self.done() > self.settings.rounds:
            raise ConfigError(
                f"the run in {self.folder} has {self.done()} rounds, more than {self.settings.rounds}; "
                "choose another folder with `out`, or give as many rounds"
            )

    def command(self) -> list[str]:
        """Return the command that starts or resumes the run."""
        sets = [part for change in self.changes for part in ("--set", change)]
        words = [sys.executable, "-m", "fedilc", "run", self.experiment, *sets, "--out", str(self.folder)]
        return [*words, "--resume"] if (self.folder / "run.json").exists() else words


def _defaults(section: type[Section]) -> dict[str, Any]:
    """Return the defaults of a section's settings, which a run of an earlier version without them had."""
    fields = section.model_fields.items()
    return {name: f.get_default(call_default_factory=True) for name, f in fields if not f.is_required()}


@dataclass
class Work:
    """The state of many jobs: which are waiting, which run, which failed and why."""

    jobs: list[Job]
    side_by_side: int
    waiting: list[Job] = field(init=False)
    running: dict[Job, subprocess.Popen[bytes]] = field(default_factory=dict)
    failed: dict[Job, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting = [job for job in self.jobs if not job.finished()]
        require_same_data(self.jobs, now=True)

    @property
    def rounds(self) -> int:
        """Return the number of rounds of all jobs."""
        return sum(job.settings.rounds for job in self.jobs)

    def done(self) -> int:
        """Return the number of complete rounds of all jobs."""
        return sum(min(job.done(), job.settings.rounds) for job in self.jobs)

    def seconds_left(self) -> float | None:
        """Return an estimate of the time left, from the times of each algorithm's rounds; None if unknown."""
        measured: dict[str, list[float]] = {}
        for job in self.jobs:
            measured.setdefault(job.settings.algorithm, []).extend(job.seconds())
        typical = {name: statistics.median(seconds) for name, seconds in measured.items() if seconds}
        if not typical:
            return None
        other = statistics.mean(typical.values())
        left = [
            (job.settings.rounds - job.done()) * typical.get(job.settings.algorithm, other)
            for job in (*self.waiting, *self.running)
        ]
        return max(sum(left) / self.side_by_side, max(left, default=0.0))


def require_same_data(jobs: Sequence[Job], *, now: bool) -> None:
    """Raise if a run that has begun has other data than now, or than another run of the same seed.

    With `now`, the data of each seed that has a run are built once, and those of the first job in any case,
    so that problems and notes of the data appear here and not in the log of a run.
    """
    known: dict[tuple[str, int], Mapping[str, Any]] = {}
    for job in jobs:
        begun = job.begun()
        if begun is None and (known or not now):
            continue
        key = job.settings.data.model_dump_json(), job.settings.seed
        if key not in known:
            known[key] = _current_facts(job) if now else begun or {}
        facts = known[key]
        if begun is not None:
            require_same(job.folder, *({"silos": f["silos"], "test": f["test"]} for f in (begun, facts)))
            if begun["model"].get("weights") and facts["model"].get("weights"):
                require_same(job.folder, *({"weights": f["model"]["weights"]} for f in (begun, facts)))


def _current_facts(job: Job) -> dict[str, Any]:
    """Return the facts of the current data and initial weights, as run.json would have them."""
    settings = job.settings
    store = settings.data.store(settings.seed, job.home)
    weights = weights_digest(settings.model.build(store, settings.seed))
    return {**data_facts(store.outline()), "model": {"weights": weights}}


def run_jobs(work: Work, show: Callable[[Work], None]) -> None:
    """Run all jobs, `side_by_side` at a time, and call `show` every half second.

    Each has OMP_NUM_THREADS threads, or its share of the cores if that is not set. Ctrl-C, or any error,
    interrupts the runs: each keeps its complete rounds in its folder, and the same call resumes them.
    """
    threads = max(1, (os.cpu_count() or 1) // max(1, min(work.side_by_side, len(work.waiting))))
    with _interrupting(work):
        while work.waiting or work.running:
            while work.waiting and len(work.running) < work.side_by_side:
                job = work.waiting.pop(0)
                work.running[job] = start_run(job, threads)
            show(work)
            time.sleep(POLL_SECONDS)
            for job in [job for job, process in work.running.items() if process.poll() is not None]:
                if work.running.pop(job).returncode:
                    work.failed[job] = _last_log_line(job)
        show(work)
    if work.failed:
        job, reason = next(iter(work.failed.items()))
        others = f" ({len(work.failed)} runs failed, this is the first)" if len(work.failed) > 1 else ""
        raise JobError(f"the run {job.label} in {job.folder} failed: {reason}{others}")
    require_same_data(work.jobs, now=False)


def start_run(job: Job, threads: int) -> subprocess.Popen[bytes]:
    """Start a run in a process of its own, with its output in the run folder's log.txt."""
    with writing(job.folder):
        job.folder.mkdir(parents=True, exist_ok=True)
        log = (job.folder / "log.txt").open("wb")
    with log:
        return subprocess.Popen(
            job.command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": str(threads)} | _environment(),
            start_new_session=True,
        )


def _environment() -> dict[str, str]:
    """Return the environment without the variables that would make a job a rank of torchrun or SLURM."""
    ranks = ("RANK", "WORLD_SIZE", "SLURM_PROCID")
    return {key: value for key, value in os.environ.items() if key not in ranks}


def _last_log_line(job: Job) -> str:
    lines = (job.folder / "log.txt").read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("fedilc: ") if lines else "its log is empty"


@contextlib.contextmanager
def _interrupting(work: Work) -> Iterator[None]:
    """Interrupt the processes that still run in the end, wait for them, and kill those that do not stop."""
    try:
        yield
    finally:
        for process in work.running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + MAX_STOP_SECONDS
        for process in work.running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
