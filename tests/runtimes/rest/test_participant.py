"""What is damaged on the way, up or down, is found and asked for again; no silo leaves because of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from fedilc import Silo
from fedilc.errors import FedILCError, SilosLostError
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.open_request import OpenRequest
from fedilc.runtimes.remote.wire import MEDIA_TYPE, DamagedError, unpack_request
from fedilc.runtimes.rest.coordinator import RestRuntime
from fedilc.runtimes.rest.http_client import CoordinatorError, HttpClient, Response
from fedilc.runtimes.rest.participant import Participant
from rest import in_background, queue_of, remote, request_for, served, training_of


def silo_of(manifest: Manifest, name: str) -> Silo:
    random = torch.Generator().manual_seed(ord(name))
    x = torch.randn(8, *manifest.model.inputs, generator=random)
    return Silo(name, x, (x[:, 0] > 0).float(), x[:3] + 0.1, (x[:3, 0] > 0).float())


def flipped(body: bytes, bit: int) -> bytes:
    changed = bytearray(body)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


class Proxy(HttpClient):
    """A line through something that damages some of what passes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sleep = lambda seconds: time.sleep(min(seconds, 0.01))
        self.down: list[int] = []
        self.up: list[int] = []
        self.joins = self.manifests = self.first_manifests = 0
        self.nonsense = 0
        self._tasks = self.answers = 0

    def call(self, method: str, path: str, most: int = 0, **options: Any) -> Response:
        if path.endswith("/join") and self.joins:
            self.joins -= 1
            return super().call(method, path, content=b"{damaged")
        if method == "PUT":
            self.answers += 1
            headers = options["headers"]
            if self.answers in self.up:
                options["content"] = flipped(options["content"], 8 * len(options["content"]) - 3)
            elif self.nonsense:
                self.nonsense -= 1
                body = options["content"]
                options["content"] = body[:-4] + b"\xff\xff\xff\xff"
                options["headers"] = {key: headers[key] for key in headers if key != "Content-Digest"}
        if path.endswith("/manifest") and self.first_manifests:
            self.first_manifests -= 1
            return Response(200, b"<html>try later</html>")
        answer = super().call(method, path, most or 1 << 20, **options)
        if path.endswith("/manifest") and self.manifests and self.answers:
            self.manifests -= 1
            return Response(200, b"<html>try later</html>")
        if answer.media == MEDIA_TYPE:
            self._tasks += 1
            if self._tasks in self.down:
                return Response(200, flipped(answer.body, 8 * len(answer.body) - 6), media=MEDIA_TYPE)
        return answer


def trained(prepare: Callable[[Proxy], object], **more: Any) -> list[dict[str, Any]]:
    """The history of a run whose silo 'b' joins through a proxy."""
    settings = remote(rounds=4, **more)
    needed = settings.min_silos or 2
    training, queue = training_of(settings, connect=lambda queue: RestRuntime(queue, needed, 600))
    with served(queue) as client, contextlib.ExitStack() as silos:
        for name in queue.silos:
            line = Proxy(str(client.base_url), None)
            silos.callback(line.close)
            if name == "b":
                prepare(line)
            silo = Participant(line, name, partial(silo_of, name=name), device="cpu")
            silos.enter_context(in_background(silo.take_part))
        try:
            history = training.run([], None, False, {}).history
        finally:
            queue.finish("complete")
    return history


@pytest.fixture(scope="module")
def undisturbed() -> list[dict[str, Any]]:
    return trained(lambda _: None)


def set_to(name: str, value: object) -> Callable[[Proxy], None]:
    return lambda line: setattr(line, name, value)


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("down", [1, 2, 3, 6, 7]),
        ("up", [1, 2, 3, 4, 5, 9]),
        ("joins", 3),
        ("nonsense", 2),
        ("first_manifests", 4),
    ],
    ids=["tasks", "answers", "joining", "answers without a digest", "the first manifest"],
)
def test_what_a_proxy_damages_is_asked_for_again_and_the_run_is_the_undisturbed_one(
    what: str, value: object, undisturbed: list[dict[str, Any]]
) -> None:
    assert trained(set_to(what, value)) == undisturbed


def test_a_silo_that_never_gets_a_manifest_leaves_with_a_sentence() -> None:
    with served(queue_of()) as client:
        line = Proxy(str(client.base_url), None)
        line.first_manifests = 99
        with pytest.raises(CoordinatorError, match="is not a FedILC coordinator: it sends no manifest"):
            Participant(line, "a", partial(silo_of, name="a"), device="cpu").take_part()
        line.close()
    assert line.first_manifests == 99 - 5


def test_a_silo_told_again_and_again_to_join_pauses_ever_longer(undisturbed: list[dict[str, Any]]) -> None:
    pauses: list[float] = []

    def prepare(line: Proxy) -> None:
        call, refusals = line.call, iter(range(5))

        def refuse(method: str, path: str, most: int = 0, **options: Any) -> Response:
            if path.endswith("/task") and next(refusals, None) is not None:
                return Response(409, b'{"detail": "join first"}')
            return call(method, path, most, **options)

        line.call = refuse
        line.sleep = pauses.append

    assert trained(prepare) == undisturbed
    for number, pause in enumerate(pauses[:4]):
        assert 0.1 * 2**number <= pause <= 0.3 * 2**number
    assert len(pauses) >= 4


def test_a_silo_that_is_set_aside_leaves_with_the_reason() -> None:
    with pytest.raises(FedILCError) as found:
        trained(set_to("nonsense", 99))
    assert isinstance(found.value, CoordinatorError | SilosLostError)
    assert "NaN" in str(found.value)
    assert "set aside" in str(found.value)


def test_a_page_in_place_of_the_manifest_is_no_reason_to_leave(undisturbed: list[dict[str, Any]]) -> None:
    def prepare(line: Proxy) -> None:
        line.manifests = 3
        call = line.call

        def lose_once(method: str, path: str, most: int = 0, **options: Any) -> Response:
            answer = call(method, path, most, **options)
            if path.endswith("/task") and line.manifests == 3 and line.answers:
                return Response(409, b"{}")
            return answer

        line.call = lose_once

    assert trained(prepare) == undisturbed


@pytest.mark.parametrize("wire", ["exact", "float16"])
@pytest.mark.parametrize("step", ["statistics", "matched-update"])
def test_every_flipped_bit_of_a_task_is_found(wire: str, step: str) -> None:
    queue = queue_of(remote(hidden=[2], inputs=2), wire)
    open_request = OpenRequest(request_for(queue, step), queue.manifest)
    body = open_request.body("")
    assert unpack_request(body, queue.manifest, "", {}).request.round == 1
    for bit in range(5, 8 * len(body), 9):
        with pytest.raises(DamagedError, match="a task was damaged on the way"):
            unpack_request(flipped(body, bit), queue.manifest, "", {})
