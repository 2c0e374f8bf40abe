"""`fedilc serve` refuses in one sentence, with exit code 2, and leaves nothing behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command import Refusal

from fedilc.runtimes import rest as rest_runtime
from fedilc.runtimes.rest.tokens import add_token


@pytest.fixture(autouse=True)
def _empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command runs in an empty folder; a command that imports from it gives the path back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_serve_without_the_packages_of_a_server_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    monkeypatch.setattr(rest_runtime, "find_spec", lambda name: None if name == "fastapi" else name)
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
