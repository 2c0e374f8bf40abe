"""Where a coordinator may listen and with what; a secret that everybody can read is noted."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from certificates import Certificates, make_certificates
from command import Refusal

from fedilc.errors import ConfigError, FedILCWarning
from fedilc.runtimes.rest.address import Address, warn_if_public
from fedilc.runtimes.rest.auth import Tokens, add_token
from fedilc.runtimes.rest.coordinator import listening, make_app
from rest import queue_of


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


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


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "coordinator.example", "::", "2001:db8::1"])
def test_nothing_travels_in_the_open_beyond_this_machine_unless_told_so_twice(
    host: str, tmp_path: Path
) -> None:
    add_token(tmp_path / "tokens.json", "a")
    tokens = Tokens.read(tmp_path / "tokens.json")
    with pytest.raises(ConfigError, match="`cert` and `key`"):
        Address(host).require_safe(tokens)
    with pytest.raises(ConfigError, match="`allow_insecure=True`"):
        Address(host, insecure=True).require_safe(tokens)
    with pytest.raises(ConfigError, match="`tokens=FILE`"):
        Address(host, allow_insecure=True).require_safe(None)
    Address(host, allow_insecure=True).require_safe(tokens)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1"])
def test_on_this_machine_it_may_without_tls_or_tokens_if_told_so(host: str) -> None:
    with pytest.raises(ConfigError, match="`insecure=True`"):
        Address(host).require_safe(None)
    Address(host, insecure=True).require_safe(None)


def test_tls_without_tokens_is_refused(certificates: Certificates) -> None:
    address = Address(certificate=certificates.certificate, key=certificates.key)
    with pytest.raises(ConfigError, match="`tokens=FILE`"):
        address.require_safe(None)


def test_a_certificate_and_its_key_belong_together(certificates: Certificates, tmp_path: Path) -> None:
    for given in ({"certificate": certificates.certificate}, {"key": certificates.key}):
        with pytest.raises(ConfigError, match="belong together"):
            Address(**given).require_safe(None)
    with pytest.raises(ConfigError, match="does not exist"):
        Address(certificate=tmp_path / "none.pem", key=certificates.key).require_safe(None)
    address = Address(port=0, certificate=certificates.key, key=certificates.certificate)
    with (
        pytest.raises(ConfigError, match="cannot be used"),
        listening(make_app(queue_of(), None), address),
    ):
        pass


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="cannot listen on 127"),
    ):
        Address(port=taken.getsockname()[1]).bind()


def test_a_host_that_is_not_here_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        Address("192.0.2.1", 0).bind()


def test_a_client_authority_needs_tls_of_the_coordinator(tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "ca.pem").write_text("")
    said = refusal("serve", "color-digits", "--insecure", "--client-ca", tmp_path / "ca.pem")
    assert "--cert and --key" in said


def test_an_expired_certificate_is_refused_and_one_that_expires_soon_is_noted(tmp_path: Path) -> None:
    old, soon = make_certificates(tmp_path / "old", days="-1"), make_certificates(tmp_path / "soon", days="1")
    with pytest.raises(ConfigError, match=r"cert\.pem has expired, so every silo would refuse it; renew it"):
        Address(certificate=old.certificate, key=old.key).require_safe(Tokens())
    with pytest.warns(FedILCWarning, match=r"cert\.pem expires in 1\.0 days; renew it"):
        Address(certificate=soon.certificate, key=soon.key).require_safe(Tokens())
