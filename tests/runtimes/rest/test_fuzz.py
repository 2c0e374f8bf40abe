"""Ten thousand damaged answers, each through the whole application: all 4xx, and the run unharmed."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI

from fedilc.runtimes.remote.open_request import OpenRequest
from fedilc.runtimes.remote.wire import content_digest
from fedilc.runtimes.rest import membership
from fedilc.runtimes.rest.coordinator import make_app
from rest import good_body, post, queue_of

TIMES = 10_000
Header = dict[str, Any]


def call(app: FastAPI, open_request: OpenRequest, body: bytes, digest: str | None) -> Any:
    """One PUT, without a network between."""
    request, sent = open_request.request, []
    headers = [(b"content-length", str(len(body)).encode())]
    headers += [(b"content-digest", digest.encode())] if digest else []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "PUT",
        "path": f"/v1/silos/a/rounds/{request.round}/{request.step}",
        "raw_path": b"",
        "root_path": "",
        "scheme": "http",
        "query_string": f"task={open_request.name}".encode(),
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> int:
        await app(scope, receive, send)
        return int(sent[0]["status"])

    return run()


def parts(body: bytes) -> tuple[Header, bytes]:
    size = int.from_bytes(body[:8], "little")
    return json.loads(body[8 : 8 + size]), body[8 + size :]


def joined(header: Header | bytes, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def damaged(body: bytes, dice: random.Random) -> bytes:
    """What a line may do to bytes: flip, drop, double, cut, add, shuffle."""
    place, length = dice.randrange(len(body)), dice.randrange(1, 64)
    some = bytes(dice.randrange(256) for _ in range(length))
    kind = dice.randrange(6)
    if kind == 0:
        return body[:place] + bytes([body[place] ^ (1 << dice.randrange(8))]) + body[place + 1 :]
    if kind == 1:
        return body[:place] + body[place + length :]
    if kind == 2:
        return body[: place + length] + body[place:]
    if kind == 3:
        return body[:place]
    if kind == 4:
        return body[:place] + some + body[place:]
    return body[place:] + body[:place] if place else b""


def lies(dice: random.Random) -> dict[str, Callable[[Header, bytes], bytes]]:
    """What a silo may claim that is not so; each is wrong whatever the dice say."""

    def about(change: Callable[[dict[str, Any]], object]) -> Callable[[Header, bytes], bytes]:
        def told(header: Header, data: bytes) -> bytes:
            inner = json.loads(header["__metadata__"]["fedilc"])
            change(inner)
            header["__metadata__"]["fedilc"] = json.dumps(inner)
            return joined(header, data)

        return told

    def entry(key: str, values: list[Any]) -> Callable[[Header, bytes], bytes]:
        def told(header: Header, data: bytes) -> bytes:
            name = dice.choice([name for name in header if name != "__metadata__"])
            header[name][key] = dice.choice([value for value in values if value != header[name][key]])
            return joined(header, data)

        return told

    def renamed(header: Header, data: bytes) -> bytes:
        name = dice.choice([name for name in header if name != "__metadata__"])
        header[name + chr(dice.randrange(32, 1000))] = header.pop(name)
        return joined(header, data)

    def poisoned(header: Header, data: bytes) -> bytes:
        place = 4 * dice.randrange(len(data) // 4)
        bad = dice.choice(
            [b"\x00\x00\x80\x7f", b"\x00\x00\x80\xff", b"\x00\x00\xc0\x7f", b"\x01\x00\x80\x7f"]
        )
        return joined(header, data[:place] + bad + data[place + 4 :])

    huge = [10**400, 1e308, -1e308, float("nan"), float("inf"), "1", None, True, [], {}, [[[]]]]
    texts = [None, 7, "[", "[" * 50_000, "{}", '{"scales": 3}', "\ud800", ""]
    return {
        "types": entry("dtype", ["F16", "F64", "I32", "BOOL", "F8_E5M2", "C64", "Q7", None, 3, ["F32"]]),
        "shapes": entry("shape", [[2**62, 2**62], [-1], [], [0], [1] * 2000, None, "4", [1.5], [[4]]]),
        "offsets": entry(
            "data_offsets", [[0, 2**63], [-4, 0], [4, 0], [1, 5], [], None, [0, 0, 0], [0, 10**30]]
        ),
        "names": renamed,
        "numbers": about(
            lambda inner: inner["numbers"].update({dice.choice(["loss", "examples"]): dice.choice(huge)})
        ),
        "no numbers": about(lambda inner: inner.update({"numbers": dice.choice([None, 3, [], "x"])})),
        "more numbers": about(lambda inner: inner["numbers"].update({f"n{dice.random()}": 1.0})),
        "metrics": about(lambda inner: inner.update({"metrics": dice.choice([None, 3, [], {"loss": 0.5}])})),
        "poison": poisoned,
        "metadata": lambda header, data: joined(
            header | {"__metadata__": {"fedilc": dice.choice(texts)}}, data
        ),
        "sizes": lambda header, data: dice.randbytes(8) + joined(header, data)[8:],
        "junk": lambda _header, _data: dice.randbytes(dice.randrange(200)),
        "nesting": lambda _header, data: joined(b"[" * dice.randrange(500, 50_000), data),
        "bytes": lambda header, data: joined(json.dumps(header).encode().replace(b'"', b"\xff", 3), data),
        "more data": lambda header, data: joined(header, data + dice.randbytes(dice.randrange(1, 50))),
        "less data": lambda header, data: joined(header, data[: dice.randrange(len(data))]),
    }


@pytest.mark.parametrize("step", ["statistics", "matched-update"])
def test_damaged_and_lying_answers_are_4xx_and_the_run_is_unharmed(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "STRIKES", 10**9)
    queue = queue_of()
    open_request = post(queue, step)
    app, good = make_app(queue, None), good_body(open_request, "a")
    digest, dice, seen = content_digest(good), random.Random(20221), Counter[str]()
    kinds = lies(dice)

    async def attack() -> None:
        for number in range(TIMES // 2):
            if number % 2:
                body, told, kind = damaged(good, dice), digest, "damaged"
                if body == good:
                    continue
            else:
                kind = dice.choice(list(kinds))
                body = kinds[kind](*parts(good))
                told = content_digest(body)
            status = await call(app, open_request, body, told)
            assert 400 <= status < 500, (kind, number, body[:300])
            seen[f"{kind} {status}"] += 1

    asyncio.run(attack())
    assert sum(seen.values()) > TIMES // 2 - 50
    assert {key.split()[-1] for key in seen} == {"400", "422"}
    assert queue.take_reply(0) is None

    async def good_ones() -> None:
        assert await call(app, open_request, good, digest) == 200

    asyncio.run(good_ones())
    reply = queue.take_reply(1)
    assert reply is not None
    assert reply.silos == ("a",)


def test_bytes_changed_in_the_header_without_a_digest_never_break_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some of these are answers still, with another loss or with other blanks: those may be taken."""
    monkeypatch.setattr(membership, "STRIKES", 10**9)
    queue = queue_of()
    open_request = post(queue)
    app, good = make_app(queue, None), good_body(open_request, "a")
    size, dice = int.from_bytes(good[:8], "little"), random.Random(7)

    async def attack() -> None:
        for _ in range(1000):
            body = bytearray(good)
            for _ in range(dice.randrange(1, 4)):
                body[dice.randrange(8 + size)] = dice.choice(b'"{}[],:0123456789abcEF.-\xff\x00')
            status = await call(app, open_request, bytes(body), None)
            assert status in (200, 409, 422)

    asyncio.run(attack())
