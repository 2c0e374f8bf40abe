"""Task queues to try single requests on, and silos that compute nothing."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import torch
from fleets import PATIENCE
from torch import Tensor

from fedilc.config import Experiment, parse_experiment
from fedilc.federation import Reply, Request
from fedilc.federation.program import MATCHED, PENALTY_WEIGHT, UPDATE
from fedilc.runtimes.base import Runtime
from fedilc.runtimes.remote.manifest import Manifest, Wire
from fedilc.runtimes.remote.open_request import OpenRequest
from fedilc.runtimes.remote.run import RemoteRun
from fedilc.runtimes.remote.wire import pack_reply, unpack_request
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.auth import Tokens
from fedilc.runtimes.rest.coordinator import RestRuntime, listening, make_app
from fedilc.runtimes.rest.task_queue import Body, Spool, TaskQueue
from fedilc.training.loop import Training
from fedilc.training.result import Result


def remote(silos: Sequence[str] = ("a", "b"), inputs: int = 3, **more: Any) -> Experiment:
    """An experiment whose silos are elsewhere."""
    data = {"source": "remote", "silos": list(silos), "inputs": [inputs], **more.pop("data", {})}
    model = {"name": "mlp", "hidden": more.pop("hidden", [4])}
    settings = {"name": "tried", "rounds": 3, "learning_rate": 0.01, "algorithm": "fishr-inter-geo"}
    return parse_experiment(settings | more | {"data": data, "model": model})


def training_of(
    settings: Experiment, wire: Wire = "exact", connect: Callable[[TaskQueue], Runtime] | None = None
) -> tuple[Training, TaskQueue]:
    """A run put together as a coordinator does, and its queue, which nobody serves yet."""
    run = RemoteRun.of(settings, Path(), wire=wire)
    queue = TaskQueue(run.manifest)
    runtime = connect(queue) if connect is not None else _Nobody(queue.silos)
    return run.training(runtime), queue


class _Nobody(Runtime):
    def __init__(self, silos: Iterable[str]) -> None:
        self.silos = tuple(silos)

    def ask(self, request: Request) -> Iterator[Reply]:
        return iter(())


def queue_of(settings: Experiment | None = None, wire: Wire = "exact") -> TaskQueue:
    """A queue on which all silos have joined."""
    queue = training_of(settings or remote(), wire)[1]
    for name in queue.silos:
        queue.join(name, 10)
    return queue


def update_of(manifest: Manifest) -> str:
    """The step that brings gradients, with the penalty where the algorithm has one."""
    return MATCHED if MATCHED in manifest.program.steps else UPDATE


def request_for(queue: TaskQueue, step: str | None = None, round_: int = 1, fill: float = 0.5) -> Request:
    """A request to all silos; unless a step is named, for gradients and what the algorithm has beside."""
    manifest = queue.manifest
    weights = {name: torch.full(like.shape, fill, dtype=like.dtype) for name, like in manifest.like.items()}
    asked = manifest.program.steps[step or update_of(manifest)]
    tensors = {
        group: {name: torch.ones(one.shape, dtype=one.dtype) for name, one in like.items()}
        for group, like in asked.sends.items()
    }
    numbers = {PENALTY_WEIGHT: 1.0} if PENALTY_WEIGHT in asked.sent_numbers else {}
    return Request(asked.name, round_, round_ - 1, tuple(manifest.silos), weights, tensors, numbers)


def post(queue: TaskQueue, step: str | None = None, round_: int = 1) -> OpenRequest:
    """Put a task up."""
    open_request = OpenRequest(request_for(queue, step, round_), queue.manifest)
    queue.open(open_request)
    return open_request


def good_reply(request: Request, manifest: Manifest, silo: str) -> Reply:
    """An answer with the right names and shapes, at next to no cost."""
    seed = sum(map(ord, silo)) + 1000 * request.round
    generator = torch.Generator().manual_seed(seed)
    step = manifest.program.steps[request.step]
    reply = Reply(silo, request.step, request.round)
    for group, answer in step.answers.items():
        reply.tensors[group] = {}
        for name, like in answer.like.items():
            values = torch.randn(like.shape, generator=generator, dtype=like.dtype)
            reply.tensors[group][name] = values.abs() if group == "variance" else values
    usual = {"loss": 0.5, "examples": 10, "distance": 0.25}
    reply.numbers = {name: usual[name] for name in step.numbers}
    if step.metrics:
        reply.metrics = {"loss": 0.5, "accuracy": 0.75, "auroc": None, "auprc": None, "examples": 5}
    return reply


def good_body(open_request: OpenRequest, silo: str) -> bytes:
    """The same as bytes."""
    return pack_reply(good_reply(open_request.request, open_request.manifest, silo), open_request.manifest)


def spooled(content: bytes) -> Body:
    """A body that has been received."""
    body = Body(Spool())
    body.write(content)
    return body


@contextlib.contextmanager
def served(queue: TaskQueue, tokens: Tokens | None = None) -> Iterator[httpx.Client]:
    """The queue behind a real socket, and a client that calls it."""
    address = Address(port=0, insecure=True)
    with listening(make_app(queue, tokens), address) as port:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            yield client


def _answer_path(open_request: OpenRequest, silo: str) -> str:
    request = open_request.request
    return f"/v1/silos/{silo}/rounds/{request.round}/{quote(request.step)}?task={open_request.name}"


def put(client: httpx.Client, open_request: OpenRequest, silo: str, body: Any, **more: Any) -> httpx.Response:
    """Bring an answer to a task."""
    return client.put(_answer_path(open_request, silo), content=body, **more)


def head_of_put(open_request: OpenRequest, silo: str, header: str) -> bytes:
    """The same as the first bytes on a line, up to the body, with a header that says how long that is."""
    return f"PUT {_answer_path(open_request, silo)} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n".encode()


def raw_connection(client: httpx.Client) -> socket.socket:
    """A connection of one's own to where the client calls, for bytes that no client would send."""
    url = client.base_url
    return socket.create_connection((url.host, url.port or 80), timeout=PATIENCE)


def detail(response: httpx.Response) -> str:
    """Why a request was refused."""
    found = response.json()["detail"]
    assert isinstance(found, str)
    return found


def eventually(is_so: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether something comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_so():
            return True
        time.sleep(0.02)
    return False


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

    def ask(self, wait: float = 20.0) -> OpenRequest | None:
        """The next task; None if there is none, or the run is over."""
        options: dict[str, Any] = {"have": self.have, "wait": wait}
        response = self.client.get(f"/v1/silos/{self.name}/task", params=options)
        if response.status_code != 200:
            assert response.status_code in (204, 410), response.text
            return None
        asked = unpack_request(response.content, self.manifest, self.have, self.weights)
        self.have, self.weights = asked.weights_digest, dict(asked.request.weights)
        return OpenRequest(asked.request, self.manifest, asked.weights_digest)

    def answer(self, open_request: OpenRequest) -> None:
        response = put(self.client, open_request, self.name, good_body(open_request, self.name))
        assert response.status_code == 200, response.text


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


@contextlib.contextmanager
def directly(client: httpx.Client) -> Iterator[httpx.Client]:
    """To the coordinator without anything between."""
    yield client


def trained(
    settings: Experiment,
    wire: Wire = "exact",
    kind: type[LightSilo] = LightSilo,
    through: Callable[[httpx.Client], contextlib.AbstractContextManager[httpx.Client]] = directly,
) -> tuple[Result, TaskQueue]:
    """A whole run over HTTP whose silos are of this kind, and take as long as they like."""
    training, queue = training_of(settings, wire, lambda queue: RestRuntime(queue, len(queue.silos), 600))
    with served(queue) as client, through(client) as line, contextlib.ExitStack() as silos:
        for name in queue.silos:
            silo = kind(line, name, queue.manifest)
            silos.enter_context(in_background(partial(_take_part, silo, queue)))
        result = training.run([], None, False, {})
        queue.finish("complete")
    return result, queue


def _take_part(silo: LightSilo, queue: TaskQueue) -> None:
    dice = random.Random(silo.name + type(silo).__name__)
    silo.join()
    while not queue.is_over():
        open_request = silo.ask()
        if open_request is not None:
            time.sleep(dice.uniform(0, 0.02))
            silo.answer(open_request)
