"""What clients without a token can cost: headers without end, silent connections, unread bodies."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import pytest

from fedilc.runtimes.rest import http_server as connections
from fedilc.runtimes.rest.auth import Tokens, add_token
from fedilc.runtimes.rest.http_server import (
    MAX_PER_SILO,
    MAX_PER_VIEWER,
    SPARE_CONNECTIONS,
    Connections,
)
from rest import eventually, queue_of, raw_connection, served


@contextlib.contextmanager
def silent(client: httpx.Client, number: int) -> Iterator[list[socket.socket]]:
    """Connections on which nothing is said."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(raw_connection(client)) for _ in range(number)]


def ended(raw: socket.socket) -> bool:
    try:
        return bool(select.select([raw], [], [], 0)[0]) and raw.recv(1) == b""
    except ConnectionError:
        return True


class Fake:
    """A connection that remembers whether it was cut."""

    def __init__(self, address: str) -> None:
        self.address, self.has_received, self.was_cut = address, False, False

    def abort(self) -> None:
        self.was_cut = True


def added(held: Connections, addresses: Iterable[str], credential: str | None = None) -> list[Fake]:
    """New connections from these addresses, on each of which a credential was shown if there is one."""
    fakes = [Fake(address) for address in addresses]
    for fake in fakes:
        held.add(fake)
        if credential is not None:
            held.trust(fake, credential)
    return fakes


@pytest.mark.parametrize(
    "address", ["192.0.2.1", "2001:db8::{:x}", "::ffff:192.0.2.1"], ids=["IPv4", "an IPv6 network", "mapped"]
)
def test_an_unknown_connection_of_the_same_address_makes_room(address: str) -> None:
    held = Connections(silos=0, descriptors=10_000)
    (other,) = added(held, ["2001:db8:0:1::1"])
    (known,) = added(held, ["192.0.2.1"], "silos/a")
    fakes = added(held, (address.format(number) for number in range(SPARE_CONNECTIONS + 3)))
    assert sum(fake.was_cut for fake in fakes) == 3
    assert not other.was_cut
    assert not known.was_cut
    assert held.cut == 3


def test_descriptors_are_left_for_the_runs_own_files() -> None:
    held = Connections(silos=300, descriptors=328)
    known = added(held, (f"silo {number}" for number in range(150)), "viewers/me")
    fakes = added(held, (f"address {number}" for number in range(150)))
    assert len(held.open) == 200
    assert not any(fake.was_cut for fake in known)
    assert sum(fake.was_cut for fake in fakes) == 100


def test_more_connections_with_tokens_than_descriptors_are_not_taken() -> None:
    held = Connections(silos=300, descriptors=228)
    added(held, ["here"] * 100, "viewers/me")
    (late,) = added(held, ["here"])
    assert late.was_cut
    assert len(held.open) == 100


@pytest.mark.parametrize(("heard", "newcomers", "least"), [(False, 60, 15), (True, 45, 3)])
def test_a_slow_client_has_a_fair_chance_among_many_from_its_address(
    monkeypatch: pytest.MonkeyPatch, heard: bool, newcomers: int, least: int
) -> None:
    """Of 300 in a place of 30, 40 stay if all are silent, and 15 if all others have sent a byte."""
    monkeypatch.setattr(connections, "SPARE_CONNECTIONS", 30)
    kept = 0
    for _ in range(300):
        held = Connections(silos=0, descriptors=10_000)
        for fake in added(held, ["here"] * 30):
            fake.has_received = heard
        (slow,) = added(held, ["here"])
        for _ in range(newcomers):
            added(held, ["here"])[0].has_received = heard
        kept += not slow.was_cut
    assert kept >= least


def test_who_has_begun_to_speak_is_kept_while_others_are_silent() -> None:
    held = Connections(silos=0, descriptors=10_000)
    (begun,) = added(held, ["here"])
    begun.has_received = True
    added(held, ["here"] * 20 * SPARE_CONNECTIONS)
    assert not begun.was_cut


@pytest.mark.parametrize(("credential", "most"), [("silos/a", MAX_PER_SILO), ("viewers/me", MAX_PER_VIEWER)])
def test_a_credential_holds_only_so_many_connections_and_loses_its_oldest(credential: str, most: int) -> None:
    held = Connections(silos=3, descriptors=10_000)
    others = added(held, ["here"] * 10, "silos/b")
    fakes = added(held, ["here"] * (most + 2), credential)
    assert [fake.was_cut for fake in fakes] == [True] * 2 + [False] * most
    assert not any(fake.was_cut for fake in others)


def test_a_proxys_connection_counts_for_the_credential_shown_last() -> None:
    held = Connections(silos=3, descriptors=10_000)
    fakes = added(held, ["proxy"] * MAX_PER_SILO, "silos/a")
    for fake in fakes:
        held.trust(fake, "silos/b")
    fakes += added(held, ["proxy"] * MAX_PER_SILO, "silos/a")
    assert not any(fake.was_cut for fake in fakes)
    for fake in fakes:
        held.remove(fake)
    assert not held.by_credential


def test_a_silo_with_too_many_connections_loses_the_oldest_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_PER_SILO", 3)
    token = add_token(tmp_path / "tokens.json", "a")
    request = f"GET /v1/manifest HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    with served(queue_of(), Tokens.read(tmp_path / "tokens.json")) as client, silent(client, 5) as raws:
        for raw in raws:
            raw.sendall(request.encode())
            assert b"200" in raw.recv(65_536)
        assert eventually(
            lambda: [bool(select.select([raw], [], [], 0)[0]) for raw in raws[:2]] == [True] * 2
        )
        assert [ended(raw) for raw in raws] == [True, True, False, False, False]
