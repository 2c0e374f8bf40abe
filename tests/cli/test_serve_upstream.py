"""`fedilc serve --upstream` refuses what the coordinator above decides."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Refusal

from fedilc.runtimes.rest.tokens import Tokens, add_token
from rest import queue_of, served


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--insecure --upstream http://127.0.0.1:9", "--upstream needs --silo NAME"),
        ("color-digits --insecure --upstream http://127.0.0.1:9 --silo n", "leave out the experiment"),
        ("--insecure --upstream http://127.0.0.1:9 --silo n --rounds 3", "leave out --rounds"),
        ("--insecure --upstream http://192.0.2.1 --silo n", "has no TLS"),
        ("--upstream https://127.0.0.1:9 --silo n", "--cert and --key"),
        (
            "color-digits --insecure --silo n",
            "without --upstream URL there is no coordinator above; leave out --silo",
        ),
        ("color-digits --insecure --view run", "--view only shows a run folder; leave out the experiment"),
    ],
)
def test_a_sub_coordinator_that_cannot_or_should_not_start_says_why(
    words: str, reason: str, refusal: Refusal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert reason in refusal("serve", *words.split())
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_not_its_tokens_is_refused_at_the_start(refusal: Refusal, tmp_path: Path) -> None:
    file, token = tmp_path / "tokens.json", tmp_path / "north.token"
    token.write_text(add_token(file, "north", carries=["a", "b"]))
    token.chmod(0o600)
    with served(queue_of(), Tokens.read(file)) as client:
        above = ("--upstream", client.base_url, "--silo", "nroth", "--token-file", token)
        refused = refusal("serve", *above, "--insecure", "--port", 0, "--out", tmp_path / "run")
    assert refused.startswith("the coordinator refuses silo 'nroth': this needs a valid bearer token")
    assert not (tmp_path / "run").exists()
