"""`fedilc serve` refuses in one sentence, with exit code 2, and leaves nothing behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command import Refusal

from fedilc import errors
from fedilc.runtimes.rest.auth import Tokens, add_token
from rest import queue_of, served


@pytest.fixture(autouse=True)
def _empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command runs in an empty folder; a command that imports from it gives the path back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_serve_without_the_packages_of_a_server_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: None if name == "fastapi" else name)
    sentence = refusal("serve", "color-digits", "--insecure")
    assert sentence.startswith("a coordinator needs fastapi,")
    assert sentence.endswith("pip install 'fedilc[serve]'")


SERVING = {
    "beyond loopback without tokens": ("--host 0.0.0.0 --allow-insecure", "--tokens FILE"),
    "beyond loopback in the open": ("--host 0.0.0.0 --insecure --tokens all.json", "--allow-insecure"),
    "no TLS and nothing said": ("--tokens all.json", "--cert and --key"),
    "a certificate without its key": ("--cert cert.pem --tokens all.json", "give both"),
    "no such certificate": ("--cert cert.pem --key key.pem --tokens all.json", "does not exist"),
    "no such token file": ("--insecure --tokens none.json", "none.json"),
    "a silo without a token": ("--insecure --tokens some.json", "fedilc token flip-0.75"),
    "another wire": ("--insecure --wire float8", "exact or float16"),
    "more silos than there are": ("--insecure --min-silos 6", "min_silos"),
    "no silos": ("--insecure --min-silos 0", "min_silos"),
    "no time": ("--insecure --round-timeout 0", "--round-timeout"),
    "no such port": ("--insecure --port 70000", "--port"),
    "no such host": ("--insecure --host 127.0.0.1x", "is not one"),
    "another algorithm": ("--insecure --algorithm best", "best"),
    "no such setting": ("--insecure --set colour=red", "colour"),
    "a network from nowhere": ("--insecure --model nowhere:build", "nowhere"),
}


@pytest.mark.parametrize("what", SERVING)
def test_a_coordinator_that_cannot_or_should_not_start_says_why(
    what: str, refusal: Refusal, tmp_path: Path
) -> None:
    names = [f"flip-{flip}" for flip in ("0.15", "0.30", "0.45", "0.60", "0.75")]
    for name in names:
        add_token(tmp_path / "all.json", name)
    add_token(tmp_path / "some.json", names[0])
    for name in names[1:4]:
        add_token(tmp_path / "some.json", name)
    words, reason = SERVING[what]
    assert reason in refusal("serve", "color-digits", *words.split(), "--out", "run")
    assert not (tmp_path / "run").exists()


def test_there_must_be_something_to_serve_or_to_show(refusal: Refusal, tmp_path: Path) -> None:
    assert "name an experiment" in refusal("serve", "--insecure")
    assert "nothing.toml" in refusal("serve", "nothing.toml", "--insecure")
    assert "holds no run" in refusal("serve", "--view", tmp_path, "--insecure")


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
    words: str, reason: str, refusal: Refusal, tmp_path: Path
) -> None:
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
