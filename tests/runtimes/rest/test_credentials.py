"""Credentials that end, change and are shown by other means; and what a silo demands of a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch
from certificates import Certificates, make_certificates, make_client_certificate
from command import Refusal, fedilc

from fedilc.data import Silo
from fedilc.errors import ConfigError, FedILCWarning
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.run import RemoteRun
from fedilc.runtimes.rest import coordinator
from fedilc.runtimes.rest.app import make_app
from fedilc.runtimes.rest.exposure import warn_if_public
from fedilc.runtimes.rest.http_client import CoordinatorError, HttpClient
from fedilc.runtimes.rest.listener import Address, listening
from fedilc.runtimes.rest.monitoring import EventStreams
from fedilc.runtimes.rest.participant import Participant
from fedilc.runtimes.rest.silo_limits import SiloLimits
from fedilc.runtimes.rest.task_queue import TaskQueue
from fedilc.runtimes.rest.tokens import TokenFile, Tokens, add_token, revoke_token
from rest import bearer, detail, queue_of, remote, served


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


def test_a_token_file_that_could_not_be_read_once_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tokens.json"
    token = add_token(file, "a")
    tokens = TokenFile(file)
    revoke_token(file, "a")
    with monkeypatch.context() as patched:
        patched.setattr(Tokens, "read", _no_descriptors)
        assert tokens.current().is_silo("a", token)
    tokens.retry_at = 0.0
    assert not tokens.current().is_silo("a", token)


def _no_descriptors(_: Path) -> Tokens:
    raise OSError(24, "Too many open files")


def test_a_viewer_whose_token_is_revoked_sees_no_further_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedilc.runtimes.rest.monitoring._KEEP_ALIVE_SECONDS", 0.01)

    async def watched() -> list[str]:
        leave = iter([True, True, False])
        return [event async for event in EventStreams(queue_of()).events(0, lambda: next(leave))]

    assert len(asyncio.run(asyncio.wait_for(watched(), 60))) == 2


def test_a_token_ends_after_its_days_for_silos_and_viewers(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    token = fedilc("token", "a", "--tokens", file, "--days", 2).strip()
    viewer = add_token(file, "me", "viewers", days=1)
    add_token(file, "b")
    read = Tokens.read(file)
    assert read.is_silo("a", token)
    assert read.owner(viewer)
    tomorrow = Tokens(read.silos, read.viewers, read.expires, lambda: time.time() + 86_400)
    assert tomorrow.is_silo("a", token)
    assert not tomorrow.is_viewer(viewer)
    assert not tomorrow.owner(viewer)
    later = Tokens(read.silos, read.viewers, read.expires, lambda: time.time() + 2 * 86_400)
    assert not later.is_silo("a", token)
    assert not later.owner(token)
    renewed = add_token(file, "a", replace=True)
    assert Tokens.read(file).expires.keys() == {"viewers/me"}
    assert Tokens.read(file).is_silo("a", renewed)


def test_only_what_is_there_can_be_revoked(tmp_path: Path, refusal: Refusal) -> None:
    file = tmp_path / "tokens.json"
    assert "does not exist" in refusal("token", "revoke", "a", "--tokens", file)
    add_token(file, "a")
    assert "'b' has no token" in refusal("token", "revoke", "b", "--tokens", file)
    assert "revoke NAME" in refusal("token", "remove", "a", "--tokens", file)


def test_whoever_could_read_the_token_file_still_can_after_a_change(tmp_path: Path) -> None:
    """The service reads it as a group; root revokes."""
    file = tmp_path / "tokens.json"
    add_token(file, "a")
    file.chmod(0o640)
    revoke_token(file, "a")
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_wrong_token_is_answered_alike_whether_or_not_the_silo_exists(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    add_token(file, "a")

    def answers(silo: str) -> list[tuple[int, str]]:
        with served(queue_of(), Tokens.read(file)) as client:
            found = [client.get(f"/v1/silos/{silo}/task", headers=bearer("x")) for _ in range(12)]
            found += [client.get("/v1/silos/a/task", headers=bearer("x"))]
            return [(one.status_code, detail(one)[:30]) for one in found]

    assert answers("a") == answers("stranger")


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o640, 0o600])
def test_a_secret_that_everybody_can_read_is_noted(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text("secret")
    file.chmod(mode)
    if mode & 0o006:
        with pytest.warns(FedILCWarning, match="chmod 600"):
            warn_if_public(file, "a key")
    else:
        warn_if_public(file, "a key")


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
def over_tls(made: Certificates, queue: TaskQueue) -> Iterator[str]:
    address = Address(port=0, certificate=made.certificate, key=made.key, client_authority=made.authority)
    address.require_safe(Tokens())
    with listening(make_app(queue, Tokens()), address) as port:
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


def test_a_client_authority_needs_tls_of_the_coordinator(tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "ca.pem").write_text("")
    said = refusal("serve", "color-digits", "--insecure", "--client-ca", tmp_path / "ca.pem")
    assert "--cert and --key" in said


def test_a_client_certificate_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match="--client-cert"):
        HttpClient("https://127.0.0.1", None, certificate=tmp_path / "mine.pem", key=tmp_path / "mine.pem")


def joining(client: httpx.Client, limits: SiloLimits) -> None:
    """A silo of six examples that takes part in a run that is over, or says why not."""

    def make(_: Manifest) -> Silo:
        return Silo("a", torch.zeros(6, 3), [0, 1] * 3)

    line = HttpClient(str(client.base_url), None, give_up_after=0)
    try:
        Participant(line, "a", make, device="cpu", limits=limits).take_part()
    finally:
        line.close()


def test_a_silo_joins_the_run_that_it_was_told_and_no_other() -> None:
    queue = queue_of()
    queue.finish("complete")
    with served(queue) as client:
        joining(client, SiloLimits(digest=queue.manifest.hash))
        joining(client, SiloLimits(digest=queue.manifest.hash[:16]))
        with pytest.raises(ConfigError, match="--manifest-digest"):
            joining(client, SiloLimits(digest="0" * 64))
    for digest in ("abc", "x" * 64, "A" * 64):
        with pytest.raises(ConfigError, match="is not a manifest's digest"):
            SiloLimits(digest=digest)


def test_a_silo_with_a_state_folder_trusts_the_first_run_at_an_address(tmp_path: Path) -> None:
    first, second = queue_of(), queue_of(remote(rounds=9))
    first.finish("complete")
    limits = SiloLimits(state=tmp_path / "state")
    with served(first) as client:
        joining(client, limits)
        joining(client, limits)
        first.manifest = second.manifest
        with pytest.raises(ConfigError, match=r"joined .* before"):
            joining(client, limits)
        joining(client, SiloLimits(digest=second.manifest.hash, state=tmp_path / "state"))
        joining(client, limits)


def test_a_silo_takes_no_part_with_fewer_examples_than_it_was_told() -> None:
    queue = queue_of()
    queue.finish("complete")
    with served(queue) as client:
        joining(client, SiloLimits(min_examples=6))
        with pytest.raises(ConfigError, match="6 examples to train on, fewer than --min-examples 7"):
            joining(client, SiloLimits(min_examples=7))


def test_a_run_folder_of_a_coordinator_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = remote()
    run = RemoteRun.of(settings, tmp_path)

    def stop(*_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(RemoteRun, "train", stop)
    with pytest.raises(InterruptedError):
        coordinator.serve(run, tmp_path / "run", Address(port=0, insecure=True), None)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
