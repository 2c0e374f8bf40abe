"""Tokens: hashes in a private file, one a name, compared in constant time, and a limit on wrong ones."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from pathlib import Path

import pytest
from command import Refusal

from fedilc.errors import ConfigError
from fedilc.runtimes.rest.auth import FailureLimit, TokenFile, Tokens, add_token, revoke_token


def test_the_file_holds_hashes_only_and_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    made = [add_token(file, "north"), add_token(file, "south"), add_token(file, "me", "viewers")]
    text = file.read_text()
    assert not any(token in text for token in made)
    assert json.loads(text)["silos"]["north"] == hashlib.sha256(made[0].encode()).hexdigest()
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(set(made)) == 3
    assert all(len(token) >= 43 for token in made)


def test_a_token_speaks_for_its_own_silo_and_for_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    north, viewer = add_token(file, "north"), add_token(file, "me", "viewers")
    add_token(file, "south")
    tokens = Tokens.read(file)
    assert tokens.is_silo("north", north)
    assert not tokens.is_silo("south", north)
    assert not tokens.is_silo("north", viewer)
    assert not tokens.is_silo("me", viewer)
    assert tokens.is_viewer(viewer)
    assert not tokens.is_viewer(north)
    assert tokens.owner(north)
    assert tokens.owner(viewer)


@pytest.mark.parametrize("token", ["", "nobody", "0" * 64, "é", "x" * 10_000])
def test_no_token_speaks_for_a_name_that_has_none(token: str, tmp_path: Path) -> None:
    add_token(tmp_path / "tokens.json", "north")
    tokens = Tokens.read(tmp_path / "tokens.json")
    assert not tokens.is_silo("stranger", token)
    assert not tokens.is_silo("north", token)
    assert not tokens.owner(token)


def test_a_viewer_of_the_same_name_as_a_silo_hides_neither(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    silo, viewer = add_token(file, "north"), add_token(file, "north", "viewers")
    tokens = Tokens.read(file)
    assert tokens.owner(silo)
    assert tokens.owner(viewer)
    assert tokens.is_silo("north", silo)
    assert not tokens.is_silo("north", viewer)


def test_every_comparison_is_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens.json"
    names = ["a", "b", "c"]
    made = {name: add_token(file, name) for name in names}
    tokens = Tokens.read(file)
    compared: list[tuple[str, str]] = []
    honest = hmac.compare_digest

    def watched(left: str, right: str) -> bool:
        compared.append((left, right))
        return honest(left, right)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    assert tokens.is_silo("a", made["a"])
    assert not tokens.is_silo("stranger", made["a"])
    assert len(compared) == 2
    assert tokens.owner(made["a"])
    assert len(compared) == 5


def test_a_second_token_needs_to_be_asked_for_and_ends_the_first(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    first = add_token(file, "north")
    with pytest.raises(ConfigError, match="`replace=True`"):
        add_token(file, "north")
    second = add_token(file, "north", replace=True)
    tokens = Tokens.read(file)
    assert tokens.is_silo("north", second)
    assert not tokens.is_silo("north", first)


def test_tokens_made_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    threads = [threading.Thread(target=add_token, args=(file, f"silo-{i}")) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Tokens.read(file).silos) == 12


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a?b", "a#b", "a%2f", " a", "a\n", "x" * 101, "a\\b"])
def test_names_that_cannot_be_part_of_an_address_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot name"):
        add_token(tmp_path / "tokens.json", name)


@pytest.mark.parametrize("name", ["north", "flip-0.15", "St. Mary 2", "Zürich", "x" * 100, "7"])
def test_names_of_places_are_taken(name: str, tmp_path: Path) -> None:
    assert add_token(tmp_path / "tokens.json", name)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"silos": []}', '{"silos": {"a": 1}}', '{"silos": {"a": "é"}}']
)
def test_a_file_that_holds_no_tokens_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(text)
    with pytest.raises(ConfigError, match="is not a token file"):
        Tokens.read(tmp_path / "tokens.json")


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fedilc token"):
        Tokens.read(tmp_path / "tokens.json")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_ten_failures_a_minute_are_free_and_the_next_must_wait_until_the_first_is_a_minute_old() -> None:
    clock = Clock()
    limit = FailureLimit(clock=clock)
    for second in range(10):
        clock.now = float(second)
        assert limit.failed("here") == 0.0
    assert limit.failed("here") == 51.0
    assert limit.failed("elsewhere") == 0.0
    clock.now = 59.9
    assert limit.failed("here") == pytest.approx(0.1)
    clock.now = 60.0
    assert limit.failed("here") == 0.0
    assert limit.failed("here") == 1.0


def test_whoever_comes_from_everywhere_does_not_fill_the_memory() -> None:
    limit = FailureLimit()
    for number in range(30_000):
        limit.failed(f"address {number}")
    assert len(limit.failures) <= 10_000


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
