"""Who may do what over a real socket, with tokens and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from fedilc.runtimes.rest.task_queue import TaskQueue
from fedilc.runtimes.rest.tokens import Tokens, add_token
from rest import bearer, good_body, post, put, queue_of, served


@dataclass
class Guarded:
    """A queue behind tokens."""

    queue: TaskQueue
    client: httpx.Client
    tokens: dict[str, str]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    file = tmp_path / "tokens.json"
    tokens = {name: add_token(file, name) for name in ("a", "b")}
    tokens["viewer"] = add_token(file, "me", "viewers")
    queue = queue_of()
    with served(queue, Tokens.read(file)) as client:
        yield Guarded(queue, client, tokens)


Call = Callable[[Guarded, dict[str, str]], httpx.Response]

SILO: dict[str, Call] = {
    "join": lambda g, headers: g.client.post(
        "/v1/silos/a/join", json={"manifest": g.queue.manifest.hash, "examples": 3}, headers=headers
    ),
    "task": lambda g, headers: g.client.get("/v1/silos/a/task", headers=headers),
    "answer": lambda g, headers: put(g.client, post(g.queue), "a", b"", headers=headers),
}
WATCH: dict[str, Call] = {
    name: lambda g, headers, name=name: g.client.get(f"/v1/{name}", headers=headers)
    for name in ("status", "history")
}


@pytest.mark.parametrize("call", SILO)
def test_only_the_silo_itself_speaks_for_it(call: str, guarded: Guarded) -> None:
    def status(headers: dict[str, str]) -> int:
        return SILO[call](guarded, headers).status_code

    for wrong in ({}, bearer("x"), bearer(guarded.tokens["b"]), bearer(guarded.tokens["viewer"])):
        assert status(dict(wrong)) == 401
    assert status({"Authorization": f"Basic {guarded.tokens['a']}"}) == 401
    assert status({"Authorization": guarded.tokens["a"]}) == 401
    assert status(dict(bearer(guarded.tokens["a"]))) not in (401, 403)


@pytest.mark.parametrize("call", WATCH)
def test_viewers_watch_and_no_silo_sees_what_another_answered(call: str, guarded: Guarded) -> None:
    assert WATCH[call](guarded, dict(bearer(guarded.tokens["viewer"]))).status_code == 200
    for wrong in ({}, bearer("x"), bearer(guarded.tokens["a"])):
        assert WATCH[call](guarded, dict(wrong)).status_code == 401


def test_events_need_a_viewers_token(guarded: Guarded) -> None:
    guarded.queue.finish("complete")
    assert guarded.client.get("/v1/events").status_code == 401
    assert guarded.client.get("/v1/events", headers=bearer(guarded.tokens["a"])).status_code == 401
    watched = guarded.client.get("/v1/events", headers=bearer(guarded.tokens["viewer"]))
    assert "event: status" in watched.text


def test_the_manifest_is_for_all_who_have_a_token(guarded: Guarded) -> None:
    assert guarded.client.get("/v1/manifest").status_code == 401
    for token in guarded.tokens.values():
        assert guarded.client.get("/v1/manifest", headers=bearer(token)).status_code == 200


def test_health_and_the_page_itself_need_none_and_tell_nothing(guarded: Guarded) -> None:
    health = guarded.client.get("/v1/health")
    assert set(health.json()) == {"status", "version", "viewer_token"}
    assert guarded.client.get("/").status_code == 200


def test_an_answer_reaches_its_own_silo_only(guarded: Guarded) -> None:
    open_request = post(guarded.queue)
    body = good_body(open_request, "a")
    stolen = put(guarded.client, open_request, "a", body, headers=bearer(guarded.tokens["b"]))
    assert stolen.status_code == 401
    assert guarded.queue.silos["a"].state == "waiting"
    assert (
        put(guarded.client, open_request, "a", body, headers=bearer(guarded.tokens["a"])).status_code == 200
    )
    read = guarded.client.get("/v1/silos/a/rounds/1/update", headers=bearer(guarded.tokens["a"]))
    assert read.status_code == 405


def test_a_token_for_a_silo_that_the_run_does_not_have_gets_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    token = add_token(file, "stranger")
    with served(queue_of(), Tokens.read(file)) as client:
        assert client.get("/v1/silos/stranger/task", headers=bearer(token)).status_code == 404


def test_after_ten_wrong_tokens_others_are_told_to_wait_and_good_ones_are_let_in(guarded: Guarded) -> None:
    """One silo with a wrong token behind a proxy that all share must not shut out the rest."""
    wrong = [guarded.client.get("/v1/silos/a/task", headers=bearer(f"x{i}")) for i in range(12)]
    assert [response.status_code for response in wrong] == [401] * 10 + [429] * 2
    assert 0 < int(wrong[-1].headers["Retry-After"]) <= 61
    assert guarded.client.get("/v1/silos/a/task", headers=bearer(guarded.tokens["a"])).status_code == 204
    assert guarded.client.get("/v1/silos/b/task", headers=bearer("x")).status_code == 429
    assert guarded.client.get("/v1/silos/b/task", headers=bearer(guarded.tokens["b"])).status_code == 204
    assert guarded.client.get("/v1/status", headers=bearer(guarded.tokens["viewer"])).status_code == 200


def test_to_claim_ever_new_names_does_not_help(guarded: Guarded) -> None:
    codes = [guarded.client.get(f"/v1/silos/s{i}/task", headers=bearer("x")).status_code for i in range(12)]
    assert codes == [401] * 10 + [429] * 2


def test_a_wrong_token_does_not_make_the_coordinator_read_the_body(guarded: Guarded) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * (1 << 20)

    response = guarded.client.put(
        "/v1/silos/a/rounds/1/update", params={"task": "t"}, content=endless(), headers=bearer("x")
    )
    assert response.status_code == 401


def test_without_tokens_everybody_is_let_in() -> None:
    with served(queue_of()) as client:
        assert client.get("/v1/silos/a/task").status_code == 204
        assert client.get("/v1/status").status_code == 200
