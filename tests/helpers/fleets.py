"""Coordinators and silos as real processes on the loopback, and what their run folders hold.

Processes are forked from one that has imported everything, so that a test can start and kill dozens of them.
All of them are ended with the test that started them.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx
import torch
import worked_examples
from ports import free_port
from torch import Tensor

import fedilc.aggregation._kernels.logs
import fedilc.aggregation._kernels.values
import fedilc.cli
import fedilc.report.plots
import fedilc.report.run_tables
import fedilc.runtimes.rest.coordinator
import fedilc.runtimes.rest.participant
import fedilc.runtimes.rest.sub_coordinator
from fedilc import train
from fedilc.config import read_experiment
from fedilc.storage.files import read_tensors

PATIENCE = 120.0
KNOWN = worked_examples.OTHERS
_WARM = "FEDILC_TESTS_FORK_HERE"


def _run(argv: Sequence[str], log: str, folder: str, environment: dict[str, str]) -> None:
    """What a forked process does: the command, its output in a file."""
    _end_with_parent()
    os.chdir(folder)
    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.set_num_threads(1)
    sys.argv = ["fedilc", *argv]
    fedilc.cli.main()


def _end_with_parent() -> None:
    """Let no process outlive the tests, however those end."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@dataclass
class Member:
    """A command that runs, and what it has said so far."""

    argv: Sequence[str]
    log: Path
    process: BaseProcess

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def kill(self) -> None:
        """As the kernel would: no goodbye."""
        self.process.kill()
        self.process.join()

    def ended(self, seconds: float = PATIENCE) -> int | None:
        """Wait for the end; its exit code."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"{self.argv} does not end; it said:\n{self.said}"
        return self.process.exitcode

    def wait_until(self, text: str, seconds: float = PATIENCE) -> re.Match[str]:
        """Until it has said something that matches."""
        deadline = time.monotonic() + seconds
        while True:
            found = re.search(text, self.said)
            if found is not None:
                return found
            assert self.process.is_alive(), f"{self.argv} ended without saying {text!r}:\n{self.said}"
            assert time.monotonic() < deadline, f"{self.argv} does not say {text!r}:\n{self.said}"
            time.sleep(0.02)


@dataclass
class Fleet:
    """The processes of one test."""

    folder: Path
    members: list[Member] = field(default_factory=list)

    def start(self, *argv: object, folder: Path | None = None, **environment: str) -> Member:
        words = [str(word) for word in argv]
        log = self.folder / f"log-{len(self.members)}.txt"
        target = (words, str(log), str(folder or self.folder), environment)
        process = _forking().Process(target=_run, args=target, daemon=True)
        process.start()
        self.members.append(Member(words, log, process))
        return self.members[-1]

    def serve(self, *argv: object, port: int | None = None) -> tuple[Member, str]:
        """A coordinator without TLS or tokens, once it can be joined, and its address."""
        port = port or free_port()
        member = self.start("serve", *argv, "--insecure", "--port", port)
        member.wait_until("silos join at http")
        return member, f"http://127.0.0.1:{port}"


@cache
def _forking() -> Any:
    """Where processes are forked: one that has imported this file, with one thread, and keeps waiting."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fleets"])
    places = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, places)), _WARM: "yes"}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return context


def _warm_up() -> None:
    """Import what is imported late, so that no forked process has to."""
    for name in ("anyio._backends._asyncio", "uvicorn.protocols.http.h11_impl", "uvicorn.lifespan.off"):
        importlib.import_module(name)
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    read_experiment("color-digits")[0].data.build(0, Path())
    httpx.Client().close()


if _WARM in os.environ:
    _warm_up()


def _work(work: Callable[..., object], arguments: Sequence[object]) -> None:
    _end_with_parent()
    work(*arguments)


def forked(work: Callable[..., object], *arguments: object) -> BaseProcess:
    """A function of a test in a process of its own; whoever starts it ends it."""
    process: BaseProcess = _forking().Process(target=_work, args=(work, arguments), daemon=True)
    process.start()
    return process


@contextlib.contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """Processes that end with the context."""
    started = Fleet(folder)
    try:
        yield started
    finally:
        for member in started.members:
            if member.process.is_alive():
                member.kill()


def outcome_of(folder: Path) -> tuple[list[str], dict[str, Tensor]]:
    """A run folder's history, line by line, and the tensors of its checkpoint."""
    history = (folder / "history.jsonl").read_text().splitlines()
    return history, read_tensors(folder / "checkpoint.safetensors")[0]


def assert_same_run(left: Path, right: Path) -> None:
    """Bit for bit: histories, weights and optimisers."""
    (history, tensors), (other_history, other_tensors) = outcome_of(left), outcome_of(right)
    assert history == other_history
    assert tensors.keys() == other_tensors.keys()
    for name, tensor in tensors.items():
        assert tensor.numpy().tobytes() == other_tensors[name].numpy().tobytes(), name


def run_locally(changes: Sequence[str], out: Path, experiment: str = "color-digits") -> tuple[str, ...]:
    """Train an experiment, changed, in this process; the names of its silos."""
    settings, folder = read_experiment(experiment, list(changes))
    federation = settings.data.build(settings.seed, folder)
    model = settings.model.build(federation, settings.seed)
    train(federation, model, settings.algorithm, **settings.options(), out=out)
    return tuple(silo.name for silo in federation.silos)


def as_options(changes: Sequence[str]) -> list[str]:
    """Changes as a command has them."""
    return [word for change in changes for word in ("--set", change)]
