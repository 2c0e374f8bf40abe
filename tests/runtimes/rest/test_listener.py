"""Tokens, and TLS with an authority of one's own, from end to end; and what systemd is told."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Certificates, make_certificates
from fleets import as_options, assert_same_run, fleet, run_locally
from ports import free_port

from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.auth import Tokens, add_token
from fedilc.runtimes.rest.coordinator import listening, make_app, notify_systemd, watchdog_seconds
from fedilc.runtimes.rest.http_client import CoordinatorError, HttpClient
from rest import queue_of, served

CHANGES = ["rounds=10", "model.hidden=[16]", "penalty_weight=5", "learning_rate=0.01"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_a_run_with_tokens_and_tls_gives_the_bits_of_local(
    certificates: Certificates, tmp_path: Path
) -> None:
    silos = run_locally(CHANGES, tmp_path / "local")
    for name in silos:
        (tmp_path / f"{name}.token").write_text(add_token(tmp_path / "tokens.json", name) + "\n")
    port, out = free_port(), tmp_path / "rest"
    secured = ["--cert", certificates.certificate, "--key", certificates.key, "--tokens", "tokens.json"]
    with fleet(tmp_path) as processes:
        coordinator = processes.start(
            "serve", "color-digits", *as_options(CHANGES), *secured, "--port", port, "--out", out
        )
        joining = ["join", f"https://127.0.0.1:{port}", "--experiment", "color-digits"]
        joining += ["--ca", certificates.authority]
        members = [
            processes.start(*joining, "--silo", name, "--token-file", f"{name}.token") for name in silos
        ]
        assert coordinator.ended() == 0, coordinator.said
        assert f"silos join at https://127.0.0.1:{port}" in coordinator.said
        for member in members:
            assert member.ended() == 0, member.said
            assert "the run is over: complete" in member.said
    assert_same_run(tmp_path / "local", out)


def test_a_silo_that_trusts_another_authority_ends_with_one_sentence(
    secured: tuple[str, str], tmp_path: Path
) -> None:
    others = make_certificates(tmp_path / "others")
    (tmp_path / "a.token").write_text(secured[1])
    (tmp_path / "a.token").chmod(0o600)
    with fleet(tmp_path) as processes:
        joining = ["join", secured[0], "--silo", "a", "--token-file", "a.token"]
        silo = processes.start(*joining, "--experiment", "color-digits", "--ca", others.authority)
        assert silo.ended() == 2
        assert silo.said.startswith(f"fedilc: the certificate of {secured[0]} is not trusted: ")
        assert silo.said.count("\n") == 1


@pytest.fixture
def secured(certificates: Certificates, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A queue behind TLS and tokens: its address, and a good token."""
    token = add_token(tmp_path / "tokens.json", "a")
    address = Address(port=0, certificate=certificates.certificate, key=certificates.key)
    with listening(make_app(queue_of(), Tokens.read(tmp_path / "tokens.json")), address) as port:
        yield f"https://127.0.0.1:{port}", token


def test_who_trusts_the_authority_is_let_in(secured: tuple[str, str], certificates: Certificates) -> None:
    line = HttpClient(*secured, certificates.authority)
    assert line.call("GET", "/v1/manifest").status == 200
    line.close()


def test_who_does_not_trust_it_sends_nothing_and_says_so_in_one_sentence(secured: tuple[str, str]) -> None:
    line = HttpClient(*secured)
    with pytest.raises(CoordinatorError, match=r"not trusted.*`ca=FILE`"):
        line.call("GET", "/v1/manifest")
    line.close()


def test_a_certificate_of_another_host_is_not_trusted(tmp_path: Path) -> None:
    others = make_certificates(tmp_path, "DNS:elsewhere.example")
    address = Address(port=0, certificate=others.certificate, key=others.key)
    token = add_token(tmp_path / "tokens.json", "a")
    with listening(make_app(queue_of(), Tokens.read(tmp_path / "tokens.json")), address) as port:
        line = HttpClient(f"https://127.0.0.1:{port}", token, others.authority)
        with pytest.raises(CoordinatorError, match="not trusted"):
            line.call("GET", "/v1/manifest")
        line.close()


def test_old_tls_is_refused(secured: tuple[str, str]) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1 "):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1_1 "):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    port = int(secured[0].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as raw, pytest.raises(ssl.SSLError):
        old.wrap_socket(raw)


def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notify_systemd("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        assert watchdog_seconds() == 0.2
        notify_systemd("READY=1")
        assert listener.recv(100) == b"READY=1"
        with served(queue_of()):
            assert listener.recv(100) == b"WATCHDOG=1"
            assert listener.recv(100) == b"WATCHDOG=1"
