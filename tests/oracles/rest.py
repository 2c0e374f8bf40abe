"""Coordinators and silos as real processes on the loopback, and boards to try single requests on.

Processes are forked from one that has imported everything, so that a test can start and kill dozens of them.
All of them are ended with the test that started them.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import random
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx
import torch
from torch import Tensor

import fedilc.aggregation.kernels
import fedilc.cli
import fedilc.report.plots
import fedilc.report.tables
import fedilc.runtimes.rest.client
import fedilc.runtimes.rest.coordinator
from fedilc import train
from fedilc.config import Experiment, parse_experiment, read_experiment
from fedilc.federation import Reply, Request, Runtime, Task
from fedilc.federation.checkpoint import read_tensors
from fedilc.runtimes.remote.manifest import Manifest, Wire, make_manifest
from fedilc.runtimes.remote.posted import Posted, expected_tensors
from fedilc.runtimes.remote.setting_up import plan_of
from fedilc.runtimes.remote.wire import pack_reply, unpack_request
from fedilc.runtimes.rest.address import Address, listening
from fedilc.runtimes.rest.app import make_app
from fedilc.runtimes.rest.board import Board
from fedilc.runtimes.rest.tokens import Tokens
from fedilc.training import Training

PATIENCE = 120.0
_WARM = "FEDILC_TESTS_FORK_HERE"


def _run(argv: Sequence[str], log: str, folder: str) -> None:
    """What a forked process does: the command, its output in a file."""
    os.chdir(folder)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.set_num_threads(1)
    sys.argv = ["fedilc", *argv]
    fedilc.cli.main()


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

    def start(self, *argv: object, folder: Path | None = None) -> Member:
        words = [str(word) for word in argv]
        log = self.folder / f"log-{len(self.members)}.txt"
        target = (words, str(log), str(folder or self.folder))
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
    context.set_forkserver_preload(["rest"])
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent), _WARM: "yes"}
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


def forked(work: Callable[..., object], *arguments: object) -> BaseProcess:
    """A function of a test in a process of its own; whoever starts it ends it."""
    process: BaseProcess = _forking().Process(target=work, args=arguments, daemon=True)
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


def free_port() -> int:
    """A port that no outgoing connection takes while a coordinator is away from it."""
    dice = random.Random(os.getpid() ^ time.monotonic_ns())
    while True:
        port = dice.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


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


def run_locally(changes: Sequence[str], out: Path) -> tuple[str, ...]:
    """Train `color-digits`, changed, in this process; the names of its silos."""
    settings, folder = read_experiment("color-digits", list(changes))
    federation = settings.data.build(settings.seed, folder)
    model = settings.model.build(federation, settings.seed)
    train(federation, model, settings.algorithm, **settings.options(), out=out)
    return tuple(silo.name for silo in federation.silos)


def as_options(changes: Sequence[str]) -> list[str]:
    """Changes as a command has them."""
    return [word for change in changes for word in ("--set", change)]


def remote(silos: Sequence[str] = ("a", "b"), inputs: int = 3, **more: Any) -> Experiment:
    """An experiment whose silos are elsewhere."""
    data = {"source": "remote", "silos": list(silos), "inputs": [inputs], **more.pop("data", {})}
    model = {"name": "mlp", "hidden": more.pop("hidden", [4])}
    settings = {"name": "tried", "rounds": 3, "learning_rate": 0.01, "algorithm": "fishr-inter-geo"}
    return parse_experiment(settings | more | {"data": data, "model": model})


def training_of(
    settings: Experiment, wire: Wire = "exact", connect: Callable[[Board], Runtime] | None = None
) -> tuple[Training, Board]:
    """A run put together as a coordinator does, and its board, which nobody serves yet."""
    plan = plan_of(settings, Path())
    boards: list[Board] = []

    def make(task: Task, model: torch.nn.Module, _outputs: int) -> Runtime:
        names = plan.outline.silos
        manifest = make_manifest(
            settings.name, settings.algorithm, task, settings, names, model, plan.spec, wire
        )
        boards.append(Board(manifest))
        return connect(boards[0]) if connect is not None else _Nobody()

    training = Training(plan.outline, plan.model, settings.algorithm, settings, make)
    return training, boards[0]


class _Nobody:
    def ask(self, request: Request) -> Iterator[Reply]:
        return iter(())


def board_of(settings: Experiment | None = None, wire: Wire = "exact") -> Board:
    """A board on which all silos have joined."""
    board = training_of(settings or remote(), wire)[1]
    for name in board.silos:
        board.join(name, 10)
    return board


def request_for(board: Board, phase: str = "gradients", round_: int = 1, fill: float = 0.5) -> Request:
    """A request to all silos, of a two-phase round where the algorithm has a penalty."""
    manifest = board.manifest
    weights = {name: torch.full(like.shape, fill, dtype=like.dtype) for name, like in manifest.like.items()}
    variance, penalty = None, None
    if phase == "gradients" and manifest.variance is not None:
        variance, penalty = torch.ones(manifest.variance, dtype=manifest.variance_like.dtype), 1.0
    silos = tuple(manifest.silos)
    return Request(phase, round_, round_ - 1, silos, weights, variance, penalty)  # type: ignore[arg-type]


def post(board: Board, phase: str = "gradients", round_: int = 1) -> Posted:
    """Put a task up."""
    posted = Posted(request_for(board, phase, round_), board.manifest)
    board.post(posted)
    return posted


def good_reply(request: Request, manifest: Manifest, silo: str) -> Reply:
    """An answer with the right names and shapes, at next to no cost."""
    seed = sum(map(ord, silo)) + 1000 * request.round
    generator = torch.Generator().manual_seed(seed)
    reply = Reply(silo, request.phase, request.round)
    for name, like in expected_tensors(request, manifest).items():
        kind, _, rest = name.partition("/")
        values = torch.randn(like.shape, generator=generator, dtype=like.dtype)
        reply.tensors.setdefault(kind, {})[rest] = values.abs() if kind == "variance" else values
    if request.phase == "gradients":
        reply.numbers = {"loss": 0.5, "examples": 10}
        reply.numbers |= {"distance": 0.25} if request.variance is not None else {}
    if request.phase == "evaluate":
        reply.numbers = {"loss": 0.5, "accuracy": 0.75, "auroc": None, "auprc": None, "examples": 5}
    return reply


def good_body(posted: Posted, silo: str) -> bytes:
    """The same as bytes."""
    return pack_reply(good_reply(posted.request, posted.manifest, silo), posted.manifest.wire)


@contextlib.contextmanager
def served(board: Board, tokens: Tokens | None = None) -> Iterator[httpx.Client]:
    """The board behind a real socket, and a client that calls it."""
    address = Address(port=0, insecure=True)
    with listening(make_app(board, tokens), address) as port:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            yield client


def put(client: httpx.Client, posted: Posted, silo: str, body: Any, **more: Any) -> httpx.Response:
    """Bring an answer to a task."""
    request = posted.request
    path = f"/v1/silos/{silo}/rounds/{request.round}/{request.phase}"
    return client.put(path, params={"task": posted.name}, content=body, **more)


def bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"}


class LightSilo:
    """A silo that computes nothing: it asks, and answers what fits."""

    def __init__(self, client: httpx.Client, name: str, manifest: Manifest) -> None:
        self.client, self.name, self.manifest = client, name, manifest
        self.have, self.weights = "", dict[str, Tensor]()

    def join(self) -> None:
        body = {"manifest": self.manifest.hash, "examples": 10}
        assert self.client.post(f"/v1/silos/{self.name}/join", json=body).status_code == 200

    def ask(self, wait: float = 20.0) -> Posted | None:
        """The next task; None if there is none, or the run is over."""
        options: dict[str, Any] = {"have": self.have, "wait": wait}
        response = self.client.get(f"/v1/silos/{self.name}/task", params=options)
        if response.status_code != 200:
            assert response.status_code in (204, 410), response.text
            return None
        asked = unpack_request(response.content, self.manifest, self.have, self.weights)
        self.have, self.weights = asked.weights, dict(asked.request.weights)
        return Posted(asked.request, self.manifest, asked.weights)

    def answer(self, posted: Posted) -> httpx.Response:
        return put(self.client, posted, self.name, good_body(posted, self.name))


@contextlib.contextmanager
def in_background(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Work in a thread that is waited for; what it raises is raised here."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    yield thread
    thread.join(PATIENCE)
    if errors:
        raise errors[0]
    assert not thread.is_alive()
