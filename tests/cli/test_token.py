"""`fedilc token` makes and revokes tokens, and refuses options that have no effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Refusal, fedilc

from fedilc.runtimes.rest.auth import Tokens


def test_the_token_that_is_shown_is_the_one_that_the_file_knows(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    token = fedilc("token", "north", "--tokens", file, "--carries", "ward").strip()
    tokens = Tokens.read(file)
    assert tokens.is_silo("north", token)
    assert tokens.carries == {"north": ["ward"]}
    fedilc("token", "revoke", "north", "--tokens", file)
    assert not Tokens.read(file).is_silo("north", token)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("revoke north --days 3", "makes no token; leave out --days"),
        ("revoke north --replace", "leave out --replace"),
        ("anna --viewer --carries north", "replies for no silo; leave out --carries"),
        ("north south", "give one name"),
    ],
)
def test_options_without_effect_are_refused(
    words: str, reason: str, refusal: Refusal, tmp_path: Path
) -> None:
    assert reason in refusal("token", *words.split(), "--tokens", tmp_path / "tokens.json")
    assert not list(tmp_path.iterdir())
