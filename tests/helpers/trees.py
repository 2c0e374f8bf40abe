"""Trees of coordinators in one process: real servers on loopback, silos that compute, a thread each."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fleets import PATIENCE
from torch import Tensor

from fedilc import Federation, Silo, train
from fedilc.config import Experiment
from fedilc.runtimes.remote.manifest import Manifest, Wire
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.coordinator import RestRuntime
from fedilc.runtimes.rest.http_client import HttpClient, Response
from fedilc.runtimes.rest.participant import Participant
from fedilc.runtimes.rest.sub_coordinator import SubCoordinator, serve_subtree
from fedilc.runtimes.rest.task_queue import TaskQueue
from fedilc.training.loop import Training
from rest import in_background, served, training_of

Tree = Mapping[str, Any]
Outcome = tuple[list[dict[str, Any]], dict[str, Tensor]]


def silo_of(manifest: Manifest, name: str) -> Silo:
    random = torch.Generator().manual_seed(ord(name))
    x = torch.randn(8 + ord(name) % 5, *manifest.model.inputs, generator=random)
    return Silo(name, x, (x[:, 0] > 0).float(), x[:3] + 0.1, (x[:3, 0] > 0).float())


def flat(*names: str) -> Tree:
    return dict.fromkeys(names)


def leaves_of(tree: Tree) -> list[str]:
    return [leaf for name, below in tree.items() for leaf in (leaves_of(below) if below else [name])]


class Turns(HttpClient):
    """A silo's line to a coordinator in this process, where replies come in an order drawn for each step."""

    def __init__(self, url: str, name: str, queue: TaskQueue) -> None:
        super().__init__(url, None)
        self.name, self.queue = name, queue

    def call(self, method: str, path: str, *arguments: Any, **options: Any) -> Response:
        if method == "PUT":
            order = list(self.queue.silos)
            random.Random(path.partition("/rounds/")[2]).shuffle(order)
            before = [self.queue.silos[silo] for silo in order[: order.index(self.name)]]
            deadline = time.monotonic() + PATIENCE
            while not all(silo.state == "answered" for silo in before):
                assert time.monotonic() < deadline
                time.sleep(0.001)
        return super().call(method, path, *arguments, **options)


@contextlib.contextmanager
def calling(url: str, name: str = "", queue: TaskQueue | None = None) -> Iterator[HttpClient]:
    line = HttpClient(url, None) if queue is None else Turns(url, name, queue)
    try:
        yield line
    finally:
        line.close()


def take_part(url: str, name: str, in_turn: TaskQueue | None = None) -> str:
    with calling(url, name, in_turn) as line:
        return Participant(line, name, partial(silo_of, name=name), device="cpu").take_part()


@contextlib.contextmanager
def sub_coordinator(url: str, name: str, out: Path, round_timeout: float = 600.0) -> Iterator[str]:
    """A sub-coordinator in a thread; its address."""
    addresses: list[str] = []
    listens = threading.Event()

    def ready(address: str, _queue: TaskQueue) -> None:
        addresses.append(address)
        listens.set()

    def work() -> None:
        with calling(url) as line:
            sub = SubCoordinator(line, name, round_timeout)
            assert serve_subtree(sub, out, Address(port=0, insecure=True), None, ready) == "complete"

    with in_background(work):
        assert listens.wait(PATIENCE)
        yield addresses[0]


def grow(url: str, tree: Tree, out: Path, stack: contextlib.ExitStack) -> None:
    """Let everybody join, each below the one that it is named under."""
    for name, below in tree.items():
        if below:
            grow(stack.enter_context(sub_coordinator(url, name, out / name)), below, out, stack)
        else:
            stack.enter_context(in_background(partial(take_part, url, name)))


@dataclass
class Root:
    """The coordinator at the top, which others join, and its run."""

    queue: TaskQueue
    url: str
    training: Training
    stack: contextlib.ExitStack

    def run(self) -> Outcome:
        """Train; everybody is told that it is over."""
        try:
            result = self.training.run([], None, False, {})
        finally:
            self.queue.finish("complete")
        return result.history, dict(result.model.state_dict())


@contextlib.contextmanager
def root(settings: Experiment, wire: Wire = "exact", round_timeout: float = 600.0) -> Iterator[Root]:
    """A coordinator that listens; whoever joins on its stack is waited for at the end."""
    needed = settings.min_silos or settings.silos_per_round or len(settings.data.silos)
    connect = partial(RestRuntime, min_silos=needed, round_timeout=round_timeout)
    training, queue = training_of(settings, wire, connect)
    with served(queue) as client, contextlib.ExitStack() as stack:
        try:
            yield Root(queue, str(client.base_url), training, stack)
        finally:
            queue.finish("complete")


def trained(settings: Experiment, tree: Tree, out: Path, wire: Wire = "exact") -> Outcome:
    """A whole run over a tree: its history and weights."""
    with root(settings, wire) as top:
        grow(top.url, tree, out, top.stack)
        return top.run()


def trained_in_turns(settings: Experiment) -> Outcome:
    """A run of one coordinator to which silos reply in an order drawn for each step."""
    with root(settings) as top:
        for name in top.queue.silos:
            top.stack.enter_context(in_background(partial(take_part, top.url, name, top.queue)))
        return top.run()


def trained_locally(settings: Experiment) -> Outcome:
    """The same run in this process."""
    manifest = training_of(settings)[1].manifest
    federation = Federation(manifest.run, [silo_of(manifest, name) for name in manifest.silos])
    model = settings.model.build(federation, settings.seed)
    result = train(federation, model, settings.algorithm, **settings.options())
    return result.history, dict(result.model.state_dict())


def assert_same(left: Outcome, right: Outcome) -> None:
    """Bit for bit: histories and weights."""
    assert left[0] == right[0]
    assert left[1].keys() == right[1].keys()
    for name, tensor in left[1].items():
        assert tensor.numpy().tobytes() == right[1][name].numpy().tobytes(), name
