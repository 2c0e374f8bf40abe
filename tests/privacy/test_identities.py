"""A silo's key stays in its file, and a roster says whose key is whose."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from command import Refusal, fedilc

from fedilc.errors import ConfigError, ProtocolError
from fedilc.privacy.identities import Roster, make_roster, new_identity, read_identity, read_roster


def three(folder: Path) -> Roster:
    return make_roster(f"{name}={new_identity(folder / name).public}" for name in "abc")


def test_a_key_is_readable_by_its_owner_only_and_is_never_replaced(tmp_path: Path) -> None:
    identity = new_identity(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert read_identity(tmp_path / "key").public == identity.public
    assert repr(identity) == f"Identity({identity.public})"
    with pytest.raises(ConfigError, match="exists already"):
        new_identity(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_identity(tmp_path / "key")


def test_other_files_are_no_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_identity(tmp_path / "none")
    (tmp_path / "text").write_text("a key")
    (tmp_path / "text").chmod(0o600)
    with pytest.raises(ConfigError, match="holds no key"):
        read_identity(tmp_path / "text")


def test_a_roster_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    roster = three(tmp_path)
    roster.write(tmp_path / "roster.json")
    assert read_roster(tmp_path / "roster.json") == roster
    again = make_roster(f"{name}={roster.keys[name]}" for name in "cba")
    assert again.digest == roster.digest
    other = make_roster(
        [f"a={new_identity(tmp_path / 'd').public}", *(f"{n}={roster.keys[n]}" for n in "bc")]
    )
    assert other.digest != roster.digest


def test_rosters_that_cannot_be_are_refused(tmp_path: Path) -> None:
    keys = three(tmp_path).keys
    for entries, sentence in (
        (["a"], "NAME=KEY"),
        ([f"a={keys['a']}"], "3 to 100 silos"),
        ([f"a={keys['a']}"] * 2, "twice"),
        ([f"{name}={keys['a']}" for name in "abc"], "same key"),
        ([f"a={keys['a'].upper()}"], "fedilc key show"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            make_roster(entries)
    for text in ("", "[]", '{"silos": {"a": 1}}'):
        (tmp_path / "wrong").write_text(text)
        with pytest.raises(ConfigError, match="not a roster"):
            read_roster(tmp_path / "wrong")


def test_a_signature_is_of_one_silo_and_one_statement(tmp_path: Path) -> None:
    roster, identity = three(tmp_path), read_identity(tmp_path / "a")
    signature = identity.sign({"round": 1})
    roster.require_signed("a", {"round": 1}, signature)
    for silo, statement, given in (
        ("b", {"round": 1}, signature),
        ("a", {"round": 2}, signature),
        ("a", {"round": 1}, "00" * 64),
        ("a", {"round": 1}, "no digits"),
        ("z", {"round": 1}, signature),
    ):
        with pytest.raises(ProtocolError):
            roster.require_signed(silo, statement, given)


def test_the_commands_make_a_roster_that_all_silos_can_compare(tmp_path: Path, refusal: Refusal) -> None:
    publics = {}
    for name in ("north", "south", "west"):
        publics[name] = fedilc("key", "new", tmp_path / f"{name}.key").strip()
        assert fedilc("key", "show", tmp_path / f"{name}.key").strip() == publics[name]
    entries = [f"{name}={key}" for name, key in publics.items()]
    said = fedilc("key", "roster", tmp_path / "roster.json", *entries)
    assert said == fedilc("key", "roster", tmp_path / "roster.json")
    assert said.splitlines()[-1] == f"roster {read_roster(tmp_path / 'roster.json').digest}"
    assert "exists already" in refusal("key", "new", tmp_path / "north.key")
    private = [(tmp_path / f"{name}.key").read_text().split("\n")[1] for name in publics]
    assert not any(secret in said for secret in private)
