"""Trees of coordinators in one process: real servers on loopback, silos that compute, a thread each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fleets import PATIENCE
from torch import Tensor

from fedilc import Silo
from fedilc.config import Experiment
from fedilc.runtimes.remote.manifest import Manifest, Wire
from fedilc.runtimes.rest.http_client import HttpClient
from fedilc.runtimes.rest.listener import Address
from fedilc.runtimes.rest.participant import Participant
from fedilc.runtimes.rest.runtime import RestRuntime
from fedilc.runtimes.rest.sub_coordinator import SubCoordinator, serve_below
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


@contextlib.contextmanager
def calling(url: str) -> Iterator[HttpClient]:
    line = HttpClient(url, None)
    try:
        yield line
    finally:
        line.close()


def take_part(url: str, name: str) -> str:
    with calling(url) as line:
        return Participant(line, name, partial(silo_of, name=name), device="cpu").take_part()


@contextlib.contextmanager
def sub_coordinator(url: str, name: str, out: Path, round_timeout: float = 600.0) -> Iterator[str]:
    """A sub-coordinator in a thread; its address."""
    addresses: list[str] = []
    listens = threading.Event()

    def ready(address: str, _manifest: Manifest) -> None:
        addresses.append(address)
        listens.set()

    def work() -> None:
        with calling(url) as line:
            sub = SubCoordinator(line, name, round_timeout)
            assert serve_below(sub, out, Address(port=0, insecure=True), None, ready) == "complete"

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
    needed = settings.min_silos or settings.silos_per_round or len(settings.data.silos)  # type: ignore[attr-defined]
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


def assert_same(left: Outcome, right: Outcome) -> None:
    """Bit for bit: histories and weights."""
    assert left[0] == right[0]
    assert left[1].keys() == right[1].keys()
    for name, tensor in left[1].items():
        assert tensor.numpy().tobytes() == right[1][name].numpy().tobytes(), name
