"""Who may do what over a real socket, with tokens and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from certificates import Certificates, make_certificates, make_client_certificate
from command import fedilc
from fleets import run_locally

from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.auth import TokenFile, Tokens, add_token
from fedilc.runtimes.rest.coordinator import listening, make_app
from fedilc.runtimes.rest.http_client import CoordinatorError, HttpClient
from fedilc.runtimes.rest.task_queue import TaskQueue
from fedilc.runtimes.rest.viewer import FolderView, publish_model
from rest import bearer, detail, good_body, post, put, queue_of, served


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


def test_a_token_is_revoked_and_replaced_while_the_coordinator_runs(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    first, other = fedilc("token", "a", "--tokens", file).strip(), add_token(file, "b")
    told: list[str] = []
    with served(queue_of(), TokenFile(file, told.append)) as client:

        def status(token: str, silo: str = "a") -> int:
            return client.get(f"/v1/silos/{silo}/task", headers=bearer(token)).status_code

        assert status(first) == 204
        assert fedilc("token", "revoke", "a", "--tokens", file) == ""
        assert status(first) == 401
        assert status(other, "b") == 204
        second = add_token(file, "a")
        assert status(second) == 204
        file.write_text("{")
        assert status(second) == 204
        assert "stay valid" in told[-1]
        file.unlink()
        assert status(second) == 204


def after(tokens: Tokens, days: int) -> Tokens:
    """The tokens as they are when some days have passed."""
    sooner = {name: end - timedelta(days=days) for name, end in tokens.expires.items()}
    return tokens.model_copy(update={"expires": sooner})


def test_a_token_ends_after_its_days_for_silos_and_viewers(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    token = fedilc("token", "a", "--tokens", file, "--days", 2).strip()
    viewer = add_token(file, "me", "viewers", days=1)
    add_token(file, "b")
    read = Tokens.read(file)
    assert read.is_silo("a", token)
    assert read.owner(viewer)
    tomorrow = after(read, days=1)
    assert tomorrow.is_silo("a", token)
    assert not tomorrow.is_viewer(viewer)
    assert not tomorrow.owner(viewer)
    later = after(read, days=2)
    assert not later.is_silo("a", token)
    assert not later.owner(token)
    renewed = add_token(file, "a", replace=True)
    assert Tokens.read(file).expires.keys() == {"viewers/me"}
    assert Tokens.read(file).is_silo("a", renewed)


def test_a_wrong_token_is_answered_alike_whether_or_not_the_silo_exists(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    add_token(file, "a")

    def answers(silo: str) -> list[tuple[int, str]]:
        with served(queue_of(), Tokens.read(file)) as client:
            found = [client.get(f"/v1/silos/{silo}/task", headers=bearer("x")) for _ in range(12)]
            found += [client.get("/v1/silos/a/task", headers=bearer("x"))]
            return [(one.status_code, detail(one)[:30]) for one in found]

    assert answers("a") == answers("stranger")


@pytest.mark.parametrize("host", ["localhost:8443", "127.0.0.1", "[::1]:80", "LOCALHOST"])
def test_without_tokens_this_machine_is_answered(host: str) -> None:
    with served(queue_of()) as client:
        assert client.get("/v1/status", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8443", "127.0.0.1.evil.example", "localhost.x"]
)
def test_without_tokens_a_name_that_was_made_to_point_here_is_not(host: str) -> None:
    with served(queue_of()) as client:
        for path in ("/v1/status", "/", "/v1/silos/a/task"):
            assert client.get(path, headers={"Host": host}).status_code == 421


def test_with_tokens_the_coordinator_has_any_name(tmp_path: Path) -> None:
    token = add_token(tmp_path / "tokens.json", "a")
    headers = {"Host": "coordinator.example.org", **bearer(token)}
    with served(queue_of(), Tokens.read(tmp_path / "tokens.json")) as client:
        assert client.get("/v1/silos/a/task", headers=headers).status_code == 204


@contextmanager
def over_tls(made: Certificates, queue: TaskQueue, tokens: Tokens | None = None) -> Iterator[str]:
    tokens = tokens or Tokens()
    address = Address(port=0, certificate=made.certificate, key=made.key, client_authority=made.authority)
    address.require_safe(tokens)
    with listening(make_app(queue, tokens), address) as port:
        yield f"https://127.0.0.1:{port}"


def test_a_certificate_speaks_for_the_silo_that_it_names_and_for_no_other(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    mine = make_client_certificate(made, "a")
    foreign = make_client_certificate(make_certificates(tmp_path / "other"), "a")
    with over_tls(made, queue_of()) as url:

        def status(silo: str, certificate: tuple[Path, Path] | None) -> int:
            pair = certificate or (None, None)
            line = HttpClient(url, None, made.authority, 0, False, *pair)
            try:
                return line.call("GET", f"/v1/silos/{silo}/task").status
            finally:
                line.close()

        assert status("a", mine) == 204
        assert status("b", mine) == 401
        assert status("a", None) == 401
        with pytest.raises(CoordinatorError):
            status("a", foreign)
        line = HttpClient(url, None, made.authority, 0, False, *mine)
        assert line.call("GET", "/v1/manifest").status == 200
        assert line.call("GET", "/v1/status").status == 401
        line.close()


def test_a_certificate_of_the_same_authority_that_names_no_silo_is_refused(tmp_path: Path) -> None:
    """An authority signs for printers too; the token file is the list of further names."""
    made = make_certificates(tmp_path)
    printer, region = make_client_certificate(made, "printer"), make_client_certificate(made, "region")
    add_token(tmp_path / "tokens.json", "region", carries=["a"])
    queue = queue_of()
    with over_tls(made, queue, Tokens.read(tmp_path / "tokens.json")) as url:
        body = {"manifest": queue.manifest.hash, "leaves": {}}
        asked = [("GET", "/v1/manifest", {}), ("POST", "/v1/silos/{}/join", {"json": body})]
        for method, path, options in asked:
            line = HttpClient(url, None, made.authority, 0, False, *printer)
            refused = line.call(method, path.format("printer"), **options)
            line.close()
            assert refused.status == 403
            assert refused.reason == (
                "the certificate names 'printer', which is no silo of this run and is not in its token file"
            )
            line = HttpClient(url, None, made.authority, 0, False, *region)
            assert line.call(method, path.format("region"), **options).status == 200
            line.close()


def test_a_published_model_is_not_for_a_certificate_that_names_no_silo(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    run_locally(["rounds=1", "model.hidden=[4]"], tmp_path / "run")
    app = make_app(FolderView(tmp_path / "run"), Tokens())
    publish_model(app, tmp_path / "run", Tokens())
    address = Address(port=0, certificate=made.certificate, key=made.key, client_authority=made.authority)
    with listening(app, address) as port:
        for name, status in (("printer", 403), ("flip-0.15", 200)):
            pair = make_client_certificate(made, name)
            line = HttpClient(f"https://127.0.0.1:{port}", None, made.authority, 0, False, *pair)
            assert [line.call("GET", path).status for path in ("/v1/manifest", "/v1/model")] == [status] * 2
            line.close()
